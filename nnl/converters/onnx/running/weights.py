# SPDX-License-Identifier: Apache-2.0
"""Which initializers are weights that train, and what they are called as nnl parameters."""

from __future__ import annotations

from collections.abc import Iterable

from nnl.converters.onnx.file.model import Graph

# Inputs that hold settings, not weights: a model that trained its Clip bounds would surprise.
_SETTINGS = {
    "Clip": (1, 2),
    "Pad": (2,),
    "Resize": (1, 2),
    "Upsample": (1,),
    "Pow": (1,),
    "OneHot": (2,),
    "Dropout": (1,),
    "Range": (0, 1, 2),
    "ConstantOfShape": (0,),
    "NonMaxSuppression": (3, 4),
    "QuantizeLinear": (1, 2),
    "DequantizeLinear": (1, 2),
    "STFT": (2,),
    **dict.fromkeys(["QLinearConv", "QLinearMatMul"], (1, 2, 4, 5, 6, 7)),
    **dict.fromkeys(["QLinearAdd", "QLinearMul"], (1, 2, 4, 5, 6, 7)),
    "QGemm": (1, 2, 4, 5, 7, 8),
    "DynamicQuantizeMatMul": (2, 3),
    "MatMulIntegerToFloat": (2, 3, 4, 5),
    "DynamicQuantizeLSTM": (8, 9, 10, 11),
    "QAttention": (3, 4),
}
_DOMAINS = ("", "com.microsoft")
_STATISTICS = {"BatchNormalization": (3, 4)}


def constants_of(graph: Graph) -> set[str]:
    """Initializers that only serve as settings."""
    return _only_read_at(graph, _SETTINGS)


def frozen_of(graph: Graph) -> set[str]:
    """Initializers that are running statistics."""
    return _only_read_at(graph, _STATISTICS)


def _only_read_at(graph: Graph, places: dict[str, tuple[int, ...]]) -> set[str]:
    inside: set[str] = set()
    outside = {v.name for v in graph.outputs}
    for node in graph.walk():
        at = places.get(node.op_type, ()) if node.domain in _DOMAINS else ()
        for i, name in enumerate(node.inputs):
            (inside if i in at else outside).add(name)
    return inside - outside


def parameter_names(names: Iterable[str]) -> dict[str, str]:
    """A free name in the parameter registry for every initializer.

    It is the initializer's own, but for empty parts between slashes; one that would be both a
    parameter and the scope of others gets "_" appended.
    """
    wanted = {n: "/".join(p for p in n.split("/") if p) or "_" for n in names}
    scopes = {k[:i] for k in wanted.values() for i, c in enumerate(k) if c == "/"}
    taken: set[str] = set()
    out = {}
    for name, key in wanted.items():
        while key in taken or key in scopes:
            key += "_"
        taken.add(key)
        out[name] = key
    return out
