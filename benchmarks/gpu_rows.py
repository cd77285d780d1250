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


@dataclass(frozen=True)
class Row:
    """A training step.

    Attributes:
        model: Name of the network.
        types: "float", "half" or "bfloat16".
        batches: Batch sizes; the best one counts.
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
_ROWS = (
    Row("lenet", "float", (64,), 28, None, (0.15,)),
    Row("resnet50", "bfloat16", (128, 256, 512), 224, "images", _IMAGES),
    Row("resnet50", "half", (128, 256, 512), 224, "images", _IMAGES),
    Row("gpt2", "bfloat16", (8, 32), 1024, "tokens"),
    Row("bert", "bfloat16", (32, 128), 512, "tokens"),
)
ROWS = {row.name: row for row in _ROWS}
