# SPDX-License-Identifier: Apache-2.0
"""Steps of PyTorch: eager, with channels_last, and compiled. Also writes ONNX files."""

import sys

import jobs_nnl
import torch
import torch_models
from cpu_rows import ROWS, SMALL_GPT2, quick
from torch.nn import functional as F


class LSTM(torch.nn.LSTM):
    """Only the outputs."""

    def forward(self, x):
        return super().forward(x)[0]


def mlp(width):
    layers = [m for _ in range(6) for m in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, 10))


def network(row):
    makers = {
        "mlp": lambda: mlp(row.size),
        "lenet": torch_models.lenet,
        "small_gpt2": lambda: torch_models.GPT2(**SMALL_GPT2),
        "mobilenet_v3": lambda: torch_models.mobilenet_v3(dropout=0.0),
        "efficientnet": torch_models.efficientnet_b0,
        "bert": lambda: torch_models.BertMaskedLanguageModel(layers=row.layers),
        "gpt2": lambda: torch_models.GPT2(layers=row.layers),
        "lstm": lambda: LSTM(256, 256),
    }
    torch.manual_seed(0)
    if row.model.startswith("resnet"):
        return torch_models.resnet(int(row.model[6:]))
    return makers[row.model]()


def tensors(row):
    x, t = (torch.tensor(a) for a in jobs_nnl.arrays(row))
    return (x, t) if row.model == "lstm" else (x, t.reshape(-1))


def build(engine, row):
    """The function that runs one step."""
    compiled = engine == "torch-compile"
    if row.kind.startswith("chain"):
        return chain(row, compiled)
    net, (x, t) = network(row), tensors(row)
    if engine == "torch-cl":
        net = net.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    train = row.kind != "forward"
    net.train(train)
    if compiled:
        net = torch.compile(net)

    def run():
        with torch.autocast("cpu", torch.bfloat16, enabled=row.half):
            return net(x)

    if not train:

        def forward():
            with torch.inference_mode():
                run()

        return forward

    if row.model in jobs_nnl.ADAM:
        solver = torch.optim.Adam(net.parameters(), 1e-5, fused=True)
    else:
        solver = torch.optim.SGD(net.parameters(), 1e-4, 0.9, fused=True)

    def step():
        solver.zero_grad()
        y = run()
        if row.model == "lstm":
            loss = F.mse_loss(y, t)
        else:
            loss = F.cross_entropy(y.reshape(-1, y.shape[-1]).float(), t)
        loss.backward()
        solver.step()

    return step


def chain(row, compiled):
    a, b = torch.full((4, 4), 0.01, requires_grad=True), torch.full((4, 4), 0.01)

    def record(a, b):
        h = a
        for _ in range(row.size):
            h = h + b
        return h

    f = torch.compile(record) if compiled else record
    if row.kind == "chain":
        return lambda: f(a, b)

    def both():
        a.grad = None
        f(a, b).sum().backward()

    return both


def export():
    """python jobs_torch.py ROW FILE [--quick]: write the row's network as an ONNX file."""
    row = ROWS[sys.argv[1]]
    row = quick(row) if "--quick" in sys.argv else row
    x, _ = tensors(row)
    torch.onnx.export(network(row).eval(), (x,), sys.argv[2], dynamo=True, verbose=False)


if __name__ == "__main__":
    export()
