# SPDX-License-Identifier: Apache-2.0
"""Which functions each target can say: the page that tells it.

python -m tests.converters.conversion_table
"""

from __future__ import annotations

from pathlib import Path

from nnl.converters.coverage import coverage
from nnl.converters.csrc.target import target as csrc
from nnl.converters.nnb.target import target as nnb
from nnl.converters.tflite.writer import TARGET as TFLITE
from nnl.core.op import OPS

PAGE = Path(__file__).parents[2] / "docs" / "conversion.md"
TARGETS = {"NNB": nnb(), "CSRC": csrc(), "TFLITE, TF_PB": TFLITE}

TEXT = """# What can be converted

Made by `python -m tests.converters.conversion_table`: every sample of every function is said in
the functions of each target. *some*: not the samples with other arguments. The tests run what is
said and compare it with numpy. [onnx_export.md](onnx_export.md) has the same for ONNX.

"""


def page() -> str:
    """The text of the page."""
    columns = {name: coverage(target) for name, target in TARGETS.items()}
    counts = [sum(said > 0 for said, _ in found.values()) for found in columns.values()]
    rows = []
    for op in sorted((op for op in OPS.values() if op.nnp), key=lambda op: op.name):
        cells = [_cell(*found[op.name]) for found in columns.values()]
        rows.append(f"| `{op.name}` | {' | '.join(cells)} |")
    table = [
        f"| function | {' | '.join(TARGETS)} |",
        f"|---|{'---|' * len(TARGETS)}",
        *rows,
        f"| {len(rows)} functions | {' | '.join(map(str, counts))} |",
    ]
    return TEXT + "\n".join(table) + "\n"


def _cell(said: int, samples: int) -> str:
    return "yes" if said == samples else "some" if said else "no"


if __name__ == "__main__":
    PAGE.write_text(page())
