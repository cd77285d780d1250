# SPDX-License-Identifier: Apache-2.0
"""The table of functions that ONNX has: python -m nnl.converters.onnx.exporting.table.

It prints the page docs/onnx_export.md; a test compares the two.
"""

from __future__ import annotations

from nnl.converters.onnx.exporting import families as _families  # noqa: F401  registers the handlers
from nnl.converters.onnx.exporting.exporter import OLDEST_OPSET
from nnl.converters.onnx.exporting.nodes.context import has_parts
from nnl.converters.onnx.exporting.nodes.older_opsets import FORM
from nnl.converters.onnx.exporting.nodes.refusals import NO_MEANING
from nnl.converters.onnx.file.registry import ONNX
from nnl.core.ops.op import OPS

_INTRODUCTION = f"""# Functions in ONNX files

`nnl.converters.onnx.save(path, outputs, inputs)` writes a graph. Opsets {OLDEST_OPSET} to the
newest that the package `onnx` knows are available; before {FORM} what an opset lacks is refused
with the operator that it lacks. Batch normalisation is written with its running statistics,
dropout as nothing; random functions keep their distribution, not their numbers;
positions are int64. A graph with a function that has no form is refused before anything is
written, with all such functions in one error.

The columns: the first opset from {FORM} on that has it, and how it is written: as the operator of
that name, by a *handler* that chooses operators by the arguments, or as *its parts*, the
functions it is made of.

This page is printed by `python -m nnl.converters.onnx.exporting.table`.
"""


def export_rows() -> list[tuple[str, str, str]]:
    """(function, first opset, how) of every public function, "" as the opset where there is none.

    how is "handler", the name of the ONNX operator where they are one to one, "its parts" for
    functions that are composed of others, or the reason why there is no ONNX form.
    """
    rows = []
    for name, op in sorted(OPS.items()):
        if op.nnp is None:
            continue
        if name in ONNX.exports:
            since = max(min(e.since for e in ONNX.exports[name]), FORM)
            if has_parts(name):
                since = FORM
            rows.append((name, str(since), "handler"))
        elif op.onnx is not None:
            rows.append((name, str(max(op.onnx.since, FORM)), op.onnx.op_type))
        elif has_parts(name):
            rows.append((name, str(FORM), "its parts"))
        else:
            rows.append((name, "", NO_MEANING.get(name, "not available")))
    return rows


def own_functions() -> set[str]:
    """Names of nnl's own functions, which have no type in .nnp files, with an ONNX form."""
    return {
        name
        for name, op in OPS.items()
        if op.nnp is None and (name in ONNX.exports or op.onnx is not None or has_parts(name))
    }


def page() -> str:
    """The page as Markdown."""
    rows = export_rows()
    written = [r for r in rows if r[1]]
    lines = [_INTRODUCTION, f"## {len(written)} functions with an ONNX form\n"]
    lines += ["| function | from opset | how |", "|---|---|---|"]
    lines += [f"| {name} | {since} | {how} |" for name, since, how in written]
    missing = [r for r in rows if not r[1]]
    lines += [f"\n## {len(missing)} functions without\n", "| function | reason |", "|---|---|"]
    lines += [f"| {name} | {how} |" for name, _, how in missing]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
