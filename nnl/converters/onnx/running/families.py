# SPDX-License-Identifier: Apache-2.0
"""Importing this registers every importer; which operators are converted, as a table."""

from importlib import import_module

from nnl.converters.onnx.file.registry import ONNX, one_to_one
from nnl.core.ops.op import OPS

_FAMILIES = (
    "arithmetic",
    "shape",
    "indexing",
    "reduction",
    "layers.convolution",
    "layers.pooling",
    "layers.normalization",
    "control",
    "layers.recurrent",
    "layers.training",
    "signal",
    "image",
    "layers.quantized",
    "layers.transformers",
    "learning.text",
    "learning.models",
    "learning.features",
    "learning.regex",
)

for _family in _FAMILIES:
    import_module(f"nnl.converters.onnx.importing.{_family}")


def support_table() -> list[tuple[str, str, str, str]]:
    """Rows (domain, operator, import, export) of everything that is converted.

    import is "handler", "table" (one to one) or "function body"; export lists the nnl functions
    that are written with a handler of their own or one to one.
    """
    from onnx import defs

    exports: dict[str, list[str]] = {}
    for op in OPS.values():
        if op.onnx is not None:
            exports.setdefault(op.onnx.op_type, []).append(op.name)
    table = one_to_one()
    rows = []
    newest = {(s.domain, s.name): s for s in defs.get_all_schemas()}
    for (domain, name), schema in sorted(newest.items()):
        if (domain, name) in ONNX.imports:
            how = "handler"
        elif domain == "" and name in table:
            how = "table"
        elif schema.has_function or schema.has_context_dependent_function:
            how = "function body"
        else:
            how = ""
        rows.append((domain or "ai.onnx", name, how, ", ".join(sorted(exports.get(name, [])))))
    return rows
