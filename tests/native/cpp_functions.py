# SPDX-License-Identifier: Apache-2.0
"""Which functions C++ refuses, found by saving and running the samples of all: the page that says
so.

    python -m tests.native.cpp_functions
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np

from nnl.core.ops.op import OPS
from nnl.ext.native import library
from tests.graph.saved import saved_sample
from tests.test_derived import CASES, Case

PAGE = Path(__file__).parents[2] / "docs" / "cpp_functions.md"
REASONS = {
    "a library for matrices is needed": (
        "batch_cholesky",
        "batch_det",
        "batch_inv",
        "batch_logdet",
    ),
    "a library for Fourier transforms is needed": ("fft", "ifft", "stft", "istft"),
    "values decide shapes": ("onnx_non_max_suppression", "unique"),
    "numpy draws it by rejection": ("rand_beta", "rand_binomial", "rand_gamma"),
    "it draws while it trains": ("inq_affine", "inq_convolution", "random_choice", "random_erase"),
    "integers; it takes floating-point numbers": ("mod2",),
    "nothing written yet; nnl.models do not need it": ("patch_correlation",),
}


def refused(folder: Path) -> set[str]:
    """Names of the functions of which C++ does not take every sample."""
    lib, found = library(), set()
    assert lib is not None
    for op, i in [p.values for p in CASES]:
        if not op.nnp or op.name in found:
            continue
        path = folder / "sample.nnlp"
        saved_sample(Case(op, i, np.float32), path)
        try:
            lib.Model(str(path))
        except ValueError as e:
            assert ": this build has no kernel of " in str(e), str(e)
            found.add(op.name)
    return found


def page(names: Collection[str]) -> str:
    """The text of the page; KeyError for a function without a reason."""
    why = {name: reason for reason, known in REASONS.items() for name in known}
    total = len({op.name for op in OPS.values() if op.nnp})
    lines = [
        "# Functions that C++ refuses",
        "",
        "A program (`.nnlp`) runs in C++ without Python, [as told there](cpp.md), unless it has "
        "one of these",
        "functions: then opening it is an error that names the function and the line where it was "
        "called.",
        "Such a function goes before or after the program, into your own C++ code.",
        "",
        "Made by `python -m tests.native.cpp_functions`: every sample of every function is saved "
        "and given",
        f"to `nnl::Model`. Of {total} functions, these {len(names)} are refused by name, all or "
        "for some arguments.",
        "",
        "| function | why |",
        "|---|---|",
        *(f"| `{name}` | {why[name]} |" for name in sorted(names)),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        PAGE.write_text(page(refused(Path(folder))))
