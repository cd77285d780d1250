# SPDX-License-Identifier: Apache-2.0
"""One engine trains one network on pictures, so many steps as it is asked for.

    python imagenet_worker.py '{"engine": "nnl", "network": "resnet50", ...}'

Requests and answers are lines of JSON on stdin and stdout, the first answer unasked when some steps
have run. {"steps": n} gives seconds of them all, seconds of those that were spent waiting for
pictures, and the most memory in MiB. Before the clock starts, as many steps run as batches were
made ahead in the meantime.

Engines: "nnl" is examples/imagenet/train.py, its loader included; "torch", "torch-cl"
(channels_last) and "torch-compile" are torchvision's or timm's network with PyTorch's DataLoader on
torchvision's transforms.
"""

import json
import os
import sys
import time
from pathlib import Path

from cpu_worker import peak_mib

HERE = Path(__file__).resolve().parent
AHEAD = 2  # batches that every loader makes ahead; PyTorch's, for each of its workers
WARM_STEPS = 3
RATE = 1e-4  # small: what is learned does not matter, that numbers stay finite does


def nnl_step(row):
    """A function that trains on the next batch, and one that gives seconds of waiting so far."""
    sys.path.insert(0, str(HERE.parent / "examples" / "imagenet"))
    import options as command_line
    import train

    import nnl as nn
    import nnl.communicators as C
    from nnl.ext_utils import get_extension_context

    given = [
        *("--network", row["network"], "--recipe", "resnet", "--learning-rate", str(RATE)),
        *("--batch-size", str(row["batch_size"]), "--type-config", row["type_config"]),
        *("--size", str(row["size"]), "--prefetch", str(AHEAD), "--workers", str(row["workers"])),
        *("--context", row["context"]),
        *(("--data", row["data"]) if row["data"] else ("--engine", "synthetic")),
    ]
    options = command_line.parse(given)
    nn.set_default_context(get_extension_context(row["context"], type_config=row["type_config"]))
    comm = C.MultiProcessDataParallelCommunicator(nn.get_current_context())
    comm.init()
    pictures = train.opened(options, comm, training=True)
    training = train.Training(options, comm, len(pictures.classes), RATE)
    batches = endless(pictures.epoch)
    numbers = iter(range(10**9))

    def step():
        training(*next(batches), (0, 0, next(numbers), 0), 0)

    return step, lambda: pictures.waiting


def endless(epoch):
    """Batch after batch, epoch after epoch."""
    number = 0
    while True:
        yield from epoch(number)
        number += 1


def torch_network(name):
    """The network in torchvision or timm, or as benchmarks/torch_models.py has it."""
    try:
        import torchvision

        names = {"resnext50": "resnext50_32x4d"}
        if not name.startswith("se_"):
            return getattr(torchvision.models, names.get(name, name))()
        import timm

        return timm.create_model(
            {"se_resnet50": "seresnet50", "se_resnext50": "seresnext50_32x4d"}[name]
        )
    except ModuleNotFoundError:
        import torch_models as T

        known = {
            "resnet18": lambda: T.resnet(18),
            "resnet50": T.resnet,
            "resnext50": T.resnext,
            "se_resnet50": T.se_resnet,
            "se_resnext50": lambda: T.resnet(50, group=32, width=4, excite=True),
            "mobilenet_v3_small": lambda: T.mobilenet_v3("small"),
            "mobilenet_v3_large": T.mobilenet_v3,
            "efficientnet_b0": lambda: T.efficientnet_b0(dropout=0.2),
        }
        if name not in known:
            raise ModuleNotFoundError(f"{name} needs torchvision or timm") from None
        return known[name]()


def torch_step(row):
    import torch
    from torch.nn import functional as F

    device = "cuda" if row["context"] == "cudnn" else "cpu"
    last = row["engine"] != "torch"
    torch.manual_seed(0)
    network = torch_network(row["network"]).to(device).train()
    network = network.to(memory_format=torch.channels_last) if last else network
    weights = [p for p in network.parameters() if p.ndim > 1]
    others = [p for p in network.parameters() if p.ndim <= 1]
    groups = [{"params": weights, "weight_decay": 1e-4}, {"params": others}]
    solver = torch.optim.SGD(groups, RATE, 0.9, fused=True)
    run = torch.compile(network) if row["engine"] == "torch-compile" else network
    half = {"half": torch.float16, "bfloat16": torch.bfloat16}.get(row["type_config"])
    scaler = torch.amp.GradScaler(device, enabled=half == torch.float16)
    waited = 0.0

    def load(number):
        return torch_batches(row) if row["data"] else torch_noise(row)

    batches = endless(load)

    def step():
        nonlocal waited
        start = time.perf_counter()
        x, t = next(batches)
        waited += time.perf_counter() - start
        x, t = x.to(device, non_blocking=True), t.to(device, non_blocking=True)
        x = x.contiguous(memory_format=torch.channels_last) if last else x
        solver.zero_grad()
        with torch.autocast(device, half or torch.bfloat16, enabled=half is not None):
            y = run(x)
        loss = F.cross_entropy(y.float(), t, label_smoothing=0.1)
        scaler.scale(loss).backward()
        scaler.step(solver)
        scaler.update()

    return step, lambda: waited


def torch_noise(row):
    import torch

    size = row["size"]
    x = torch.randn(row["batch_size"], 3, size, size)
    t = torch.randint(0, 1000, (row["batch_size"],))
    while True:
        yield x, t


def torch_batches(row):
    import torch
    from torchvision import datasets, transforms

    change = transforms.Compose(
        [
            transforms.RandomResizedCrop(row["size"]),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    pictures = datasets.ImageFolder(Path(row["data"]) / "train", change)
    more = {"prefetch_factor": AHEAD} if row["workers"] else {}
    return torch.utils.data.DataLoader(
        pictures, row["batch_size"], True, num_workers=row["workers"], drop_last=True, **more
    )


def answers(row):
    """Yield the answer to what is sent; the first one unasked."""
    step, waiting = (nnl_step if row["engine"] == "nnl" else torch_step)(row)
    times = []
    for _ in range(WARM_STEPS):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    ahead = AHEAD * max(row["workers"], 1) if row["data"] else 1
    request = yield {"warm_s": min(times)}
    while True:
        for _ in range(ahead):
            step()
        waited, start = waiting(), time.perf_counter()
        for _ in range(request["steps"]):
            step()
        seconds = time.perf_counter() - start
        found = {"seconds": seconds, "waiting": waiting() - waited, "peak_mib": peak_mib()}
        request = yield found


def main():
    row = json.loads(sys.argv[1])
    channel = os.fdopen(os.dup(1), "w")  # an engine that prints must not disturb the answers
    os.dup2(2, 1)
    conversation = answers(row)
    answer = next(conversation)
    while True:
        print(json.dumps(answer), file=channel, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        answer = conversation.send(json.loads(line))


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))
    main()
