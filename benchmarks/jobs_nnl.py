# SPDX-License-Identifier: Apache-2.0
"""Steps of nnl, and of NNabla with the same text: nnl.models runs on either."""

import importlib
import sys
import types
from pathlib import Path

import numpy as np
from cpu_rows import SMALL_GPT2

ADAM = (
    "mlp",
    "affine",
    "maml",
    "lenet",
    "bert",
    "gpt2",
    "small_gpt2",
)  # the others are trained with momentum
MODELS = Path(__file__).resolve().parent.parent / "nnl" / "models"


def nnabla_as_nnl():
    """Let `import nnl` and what nnl.models imports find NNabla, and return it."""
    names = {
        "nnl": "nnabla",
        "nnl.functions": "nnabla.functions",
        "nnl.parametric_functions": "nnabla.parametric_functions",
        "nnl.parametric_functions.initializer": "nnabla.initializer",
        "nnl.solvers": "nnabla.solvers",
        "nnl.core.graph.variable": "nnabla",
    }
    for ours, theirs in names.items():
        sys.modules[ours] = importlib.import_module(theirs)
    package = types.ModuleType("nnl.models")
    package.__path__ = [str(MODELS)]  # its __init__ is left out: each model is imported by itself
    sys.modules["nnl.models"] = package
    return sys.modules["nnl"]


def network(row, x):
    """The outputs of the row's network."""

    def model(module, function):
        return getattr(importlib.import_module(f"nnl.models.{module}"), function)

    test = row.kind == "forward"
    if row.model.startswith("resnet"):
        return model("resnet", "resnet")(x, int(row.model[6:]), test=test)
    if row.model == "lenet":
        return model("lenet", "lenet")(x)
    if row.model == "mlp":
        return model("lenet", "mlp")(x, (row.size,) * 6)
    if row.model == "affine":
        from nnl import parametric_functions as PF

        for i in range(6):
            x = PF.affine(x, row.size, name=f"affine{i}")
        return x
    if row.model == "small_gpt2":
        return model("gpt2", "gpt2")(x, **SMALL_GPT2, dropout=0.0)
    if row.model == "mobilenet_v3":
        return model("mobilenet_v3", "mobilenet_v3")(x, test=test, dropout=0.0)
    if row.model == "efficientnet":
        return model("efficientnet", "efficientnet")(x, test=test, dropout=0.0, drop_path=0.0)
    if row.model == "bert":
        f = model("bert", "bert_masked_language_model")
        return f(x, layers=row.layers, dropout=0.0)
    if row.model == "gpt2":
        return model("gpt2", "gpt2")(x, layers=row.layers, dropout=0.0)
    from nnl import functions as F
    from nnl import parametric_functions as PF

    state = F.constant(0.0, (1, 1, row.batch, x.shape[2]))
    return PF.lstm(x, state, state)[0]


def arrays(row):
    """Input and target of a step."""
    rng = np.random.default_rng(0)
    if row.model in ("bert", "gpt2", "small_gpt2"):
        words = SMALL_GPT2["vocabulary"] if row.model == "small_gpt2" else 30000
        x = rng.integers(0, words, (row.batch, row.size))
        return x, rng.integers(0, words, (row.batch, row.size, 1))
    if row.model in ("mlp", "affine"):
        x = rng.normal(size=(row.batch, row.size))
        return x.astype(np.float32), rng.integers(0, 10, (row.batch, 1))
    if row.model == "lstm":
        shape = (row.size, row.batch, 256)
        x, t = rng.normal(size=shape), rng.normal(size=shape) * 0.1
        return x.astype(np.float32), t.astype(np.float32)
    colors, classes = (1, 10) if row.model == "lenet" else (3, 1000)
    x = rng.normal(size=(row.batch, colors, row.size, row.size))
    return x.astype(np.float32), rng.integers(0, classes, (row.batch, 1))


def build(engine, row):
    """The function that runs one step. Raises where the engine cannot do the row."""
    nn = nnabla_as_nnl() if engine == "nnabla" else importlib.import_module("nnl")
    import nnl.functions as F
    import nnl.solvers as S

    if row.half:
        context = nn.ext_utils.get_extension_context("cpu", type_config="bfloat16")
        nn.set_default_context(context)
    compiled = engine == "nnl-compile"
    if row.kind.startswith("chain"):
        return chain(nn, F, row, compiled)
    if row.model == "maml":
        sys.path.insert(0, str(MODELS.parent.parent / "examples" / "references"))
        maml = importlib.import_module("maml")
        points = list(map(nn.Variable.from_numpy_array, maml.tasks(np.random.default_rng(0))))
    else:
        x_array, t_array = arrays(row)
        x, t = nn.Variable(x_array.shape), nn.Variable(t_array.shape)
        x.d, t.d = x_array, t_array

    def whole():
        return maml.loss_of(*points) if row.model == "maml" else loss_of(network(row, x))

    def loss_of(y):
        if row.model == "lstm":
            return F.mean(F.squared_error(y, t))
        return F.mean(F.softmax_cross_entropy(y, t, axis=len(y.shape) - 1))

    if row.kind == "forward":
        if compiled:
            forward = nn.compile(lambda: network(row, x))
            return forward
        y = network(row, x)
        return lambda: y.forward(clear_buffer=True)
    loss = whole()
    adam = row.model in ADAM
    solver = S.Adam(1e-5) if adam else S.Momentum(1e-4, 0.9)
    solver.set_parameters(nn.get_parameters())

    def static():
        loss.forward(clear_no_need_grad=True)
        solver.zero_grad()
        loss.backward(clear_buffer=True)
        solver.update()

    def recorded():
        y = whole()
        y.forward(clear_no_need_grad=True)
        solver.zero_grad()
        y.backward(clear_buffer=True)
        solver.update()
        return y

    def eager():
        y = whole()
        solver.zero_grad()
        y.backward(clear_buffer=True)
        solver.update()
        return y

    if engine in ("nnl-eager", "nnl-coexecute"):
        nn.set_auto_forward(True)
        return eager if engine == "nnl-eager" else nn.coexecute(eager)
    return nn.compile(recorded) if compiled else static


def chain(nn, F, row, compiled):
    """row.size additions to a small array, with or without backward."""
    a, b = nn.Variable((4, 4), need_grad=True), nn.Variable((4, 4))
    a.d = b.d = 0.01

    def record():
        h = a
        for _ in range(row.size):
            h = F.add2(h, b)
        return h

    train = row.kind == "chain-train"
    y = record()

    def static():
        a.grad.zero()
        y.forward(clear_no_need_grad=True)
        if train:
            y.backward(clear_buffer=True)

    def recorded():
        y = record()
        if train:
            a.grad.zero()
            y.backward()
        return y

    return nn.compile(recorded) if compiled else static


def profile(step, count):
    """What nnl.profile says about some steps."""
    import nnl

    if not hasattr(nnl, "profile"):
        raise NotImplementedError("this nnl has no nnl.profile")
    with nnl.profile() as report:
        for _ in range(count):
            step()
    return str(report)
