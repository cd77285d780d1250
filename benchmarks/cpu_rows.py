# SPDX-License-Identifier: Apache-2.0
"""What benchmarks/cpu.py measures. Read by the workers of every engine, so plain Python 3.10."""

from dataclasses import dataclass, replace

# engine -> what it says in the table; "nnl" and "nnl-compile" are ours, the others are peers
ENGINES = {
    "nnl": "nnl static",
    "nnl-compile": "nnl.compile",
    "torch": "PyTorch",
    "torch-cl": "PyTorch channels_last",
    "torch-compile": "torch.compile",
    "nnabla": "NNabla",
    "ort": "ONNX Runtime",
}
OURS = ("nnl", "nnl-compile")
TRAIN = (*OURS, "torch", "torch-cl", "torch-compile", "nnabla")
TOKENS = (*OURS, "torch", "torch-compile", "nnabla")  # without images there is no channels_last
FORWARD = (*TRAIN, "ort")
HALF_TRAIN = (*OURS, "torch", "torch-cl", "torch-compile")
HALF_TOKENS = (*OURS, "torch", "torch-compile")


@dataclass(frozen=True)
class Row:
    """One line of the result.

    kind: "train", "forward", "chain" (a chain of small additions, forward), "chain-train",
        "memory" (peak of a training step), "compile" (first step less a warm one), "busy" (how
        much slower a training step is while another process keeps one core busy).
    size: Pixels along a side, or number of time steps or tokens.
    target: What to reach: ("peer", r): r times the best peer; ("engine", name, r): r times that
        engine; ("row", name, r): r times nnl in that row; ("at most", v): v in the row's unit.
    """

    title: str
    model: str
    kind: str
    batch: int
    size: int
    engines: tuple
    target: tuple
    half: bool = False
    layers: int = 12  # of a transformer
    unit: str = "ms"


def _trained(title, model, batch, size, engines, half_engines, targets):
    """The float32 and the bfloat16 row of a training step."""
    wanted, wanted_half = targets
    row = Row(f"{title} train step", model, "train", batch, size, engines, ("peer", wanted))
    half = replace(
        row,
        title=f"{row.title}, bf16",
        engines=half_engines,
        target=("peer", wanted_half),
        half=True,
    )
    return row, half


def _rows():
    rows = {
        "lenet": Row("LeNet b64 train step, Adam", "lenet", "train", 64, 28, TRAIN, ("peer", 0.7))
    }
    networks = {
        "resnet18": ("ResNet-18 224 b4", "resnet18", 4, 224, TRAIN, HALF_TRAIN, (0.75, 0.5)),
        "resnet50": ("ResNet-50 224 b4", "resnet50", 4, 224, TRAIN, HALF_TRAIN, (0.9, 0.6)),
        "mobilenet": (
            *("MobileNetV3-L 224 b4", "mobilenet_v3", 4, 224, TRAIN, HALF_TRAIN),
            (0.9, 0.6),
        ),
        "efficientnet": (
            *("EfficientNet-B0 224 b4", "efficientnet", 4, 224, TRAIN, HALF_TRAIN),
            (0.9, 0.6),
        ),
        "bert": ("BERT-base b4 x 128", "bert", 4, 128, TOKENS, HALF_TOKENS, (0.9, 0.6)),
        "gpt2": ("GPT-2 small b2 x 256", "gpt2", 2, 256, TOKENS, HALF_TOKENS, (0.9, 0.6)),
        "lstm": ("LSTM 256 x 64 steps b32", "lstm", 32, 64, TOKENS, HALF_TOKENS, (0.9, 0.6)),
    }
    for name, network in networks.items():
        rows[f"{name}-train"], rows[f"{name}-train-bf16"] = _trained(*network)
    for batch in (1, 4):
        title, name = f"ResNet-18 224 b{batch} forward", f"resnet18-forward-b{batch}"
        row = Row(title, "resnet18", "forward", batch, 224, FORWARD, ("peer", 1.0))
        rows[name] = row
        rows[f"{name}-bf16"] = replace(
            row,
            title=f"{title}, bf16",
            engines=HALF_TRAIN,
            target=("row", name, 0.4),
            half=True,
        )
    chain = Row("100-op chain (4,4), forward", "chain", "chain", 4, 100, TOKENS, ("at most", 0.1))
    chain = replace(chain, unit="us per op")
    rows["chain"] = chain
    rows["chain-train"] = replace(
        chain,
        title="100-op chain (4,4), with backward",
        kind="chain-train",
        target=("at most", 0.3),
    )
    rows["memory"] = Row(
        *("ResNet-50 224 b8 train, peak memory", "resnet50", "memory", 8, 224, TRAIN),
        ("engine", "torch", 0.6),
        unit="MiB",
    )
    rows["busy"] = Row(
        *("ResNet-18 224 b4 train, slower by, beside a busy process", "resnet18", "busy"),
        *(4, 224, TRAIN, ("at most", 2.5)),
        unit="times",
    )
    rows["compile"] = Row(
        *("ResNet-50 224 b4 train, cold compile", "resnet50", "compile", 4, 224),
        ("nnl-compile", "torch-compile"),  # a static graph is recorded before its first step
        ("engine", "torch-compile", 0.1),
        unit="s",
    )
    return rows


ROWS = _rows()

# What benchmarks/coexecution.py measures with the same workers: one code, run in several ways.
WAYS = {
    "nnl-eager": "nnl eager",
    "nnl-coexecute": "nnl co-executed",
    "nnl": "nnl static",
    "torch": "PyTorch",
    "torch-compile": "torch.compile",
}
# the target of co-execution: at most so many times another way
STEPS = {
    "step-mlp": Row("MLP 6 x 64 b32", "mlp", "train", 32, 64, tuple(WAYS), ("nnl-eager", 0.4)),
    "step-affine": Row(
        "6 affine layers of 64 b32", "affine", "train", 32, 64, tuple(WAYS)[:3], ("nnl-eager", 0.4)
    ),
    "step-maml": Row(
        *("MAML, 16 tasks of 10 points", "maml", "train", 16, 10, tuple(WAYS)[:3]),
        ("nnl-eager", 0.4),
    ),
    "step-lenet": Row("LeNet b64", "lenet", "train", 64, 28, tuple(WAYS), ("nnl", 1.5)),
    "step-resnet18": Row(
        "ResNet-18 224 b4", "resnet18", "train", 4, 224, tuple(WAYS), ("nnl", 1.1)
    ),
    "step-gpt2": Row(
        "GPT-2 4 x 128 b4 x 64", "small_gpt2", "train", 4, 64, tuple(WAYS), ("nnl-eager", 1.0)
    ),
}
SMALL_GPT2 = {"vocabulary": 1000, "width": 128, "layers": 4, "heads": 4, "longest": 64}


def quick(row):
    """The row with small images, short sequences and few layers, to try the benchmark itself."""
    size = {224: 64, 128: 16, 256: 16, 64: 8}.get(row.size, row.size)
    return replace(row, size=size, layers=2, batch=min(row.batch, 8))
