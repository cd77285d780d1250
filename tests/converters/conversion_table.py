# SPDX-License-Identifier: Apache-2.0
"""Which functions each target can say: the page that tells it.

python -m tests.converters.conversion_table
"""

from __future__ import annotations

from pathlib import Path

from nnl.converters.coverage import coverage
from nnl.converters.csrc.target import target as csrc
from nnl.converters.nnb.target import target as nnb
from nnl.converters.tflite.building import IMPORTERS
from nnl.converters.tflite.reader import REFUSED
from nnl.converters.tflite.schema import OPERATORS
from nnl.converters.tflite.writer import TARGET as TFLITE
from nnl.core.ops.op import OPS

PAGE = Path(__file__).parents[2] / "docs" / "conversion.md"
TARGETS = {"NNB": nnb(), "CSRC": csrc(), "TFLITE, TF_PB": TFLITE}

TEXT = """# What can be converted

`nnl convert` writes a trained network for NNabla's C runtime (NNB), as C source that compiles alone
(CSRC), for TensorFlow Lite and for TensorFlow (TFLITE, TF_PB); [formats.md](formats.md) tells what
each is for. This table says which functions the network may have. *some*: not with all arguments.
Where a function says *no*, the network is refused, all such calls are named with their lines, and
nothing is written; often the function can be said in others that are there. ONNX has
[a table of its own](onnx_export.md).

Made by `python -m tests.converters.conversion_table`: every sample of every function is said in
the functions of each target. The tests run what is said and compare it with numpy.

"""

READ = """
## Operators of .tflite files

nnl reads {count} of the {all} builtin operators of TensorFlow Lite's schema. A file with one of the
others is refused, by the names of all of them and with these reasons. States (`VAR_HANDLE` and
tensors that are variable) are kept from run to run, see [formats.md](formats.md#tensorflow-lite).

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
    return TEXT + "\n".join(table) + "\n" + _operators()


def _operators() -> str:
    """What is read of .tflite files, and what is not and why."""
    reasons: dict[str, list[str]] = {}
    for name in OPERATORS:
        if name in REFUSED:
            reasons.setdefault(REFUSED[name], []).append(name)
    read = sorted(name for name in OPERATORS if name in IMPORTERS)
    table = ["| operators | read |", "|---|---|", f"| {', '.join(read)} | yes |"]
    table += [f"| {', '.join(names)} | no: {why} |" for why, names in reasons.items()]
    return READ.format(count=len(read), all=len(OPERATORS)) + "\n".join(table) + "\n"


def _cell(said: int, samples: int) -> str:
    return "yes" if said == samples else "some" if said else "no"


if __name__ == "__main__":
    PAGE.write_text(page())
