# SPDX-License-Identifier: Apache-2.0
"""What benchmarks/gpu.py measures."""

from dataclasses import dataclass

ENGINES = {
    "nnl": "nnl, a static graph: forward, backward and update replayed as CUDA graphs",
    "nnl-compile": "nnl.compile: the whole step as one plan",
    "torch": "PyTorch, eager, channels_last, autocast",
    "torch-compile": "torch.compile",
    "torch-graphs": "torch.compile(mode='reduce-overhead'), which records CUDA graphs",
}
OURS = ("nnl", "nnl-compile")
FIRST = ("nnl", "torch")  # start in seconds; the others compile for minutes


@dataclass(frozen=True)
class Row:
    """A training step.

    Attributes:
        model: Name of the network.
        types: "float", "half" or "bfloat16".
        batches: Batch sizes, the most telling one first; the best one counts.
        size: Pixels, or positions.
        unit: What is counted per second, None for milliseconds per step.
        goals: What issue 5 asks for, in the unit.
    """

    model: str
    types: str
    batches: tuple[int, ...]
    size: int
    unit: str | None
    goals: tuple[float, ...] = ()

    @property
    def name(self):
        return f"{self.model}-{self.types}"

    def items(self, batch):
        """How many of the unit one step has."""
        return batch * (self.size if self.unit == "tokens" else 1)


_IMAGES = (3000.0, 4500.0, 7000.0)
_ROWS = (  # what matters most first
    Row("resnet50", "bfloat16", (256, 128, 512), 224, "images", _IMAGES),
    Row("gpt2", "bfloat16", (32, 8), 1024, "tokens"),
    Row("lenet", "float", (64,), 28, None, (0.15,)),
    Row("bert", "bfloat16", (32, 128), 512, "tokens"),
    Row("resnet50", "half", (256, 128, 512), 224, "images", _IMAGES),
)
ROWS = {row.name: row for row in _ROWS}


def in_order(rows, engines):
    """(row, batch, engine) of all measurements, so that what has been done by any time tells most.

    First the quick engines at the first batch size of every row, then the others at these, then the
    other batch sizes alike.
    """
    work = [(row, batch, engine) for row in rows for batch in row.batches for engine in engines]
    return sorted(work, key=lambda w: (w[1] != w[0].batches[0], w[2] not in FIRST))
