# SPDX-License-Identifier: Apache-2.0
"""Operators that TensorFlow has, too: what reads its graphs reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nnl.converters.networks.layout import plain, step
from nnl.converters.tensorflow import import_arithmetic as _a  # noqa: F401  register importers
from nnl.converters.tensorflow import import_image as _i  # noqa: F401
from nnl.converters.tensorflow import import_shape as _s  # noqa: F401
from nnl.converters.tensorflow.axes import Axes
from nnl.converters.tensorflow.interpreter import HANDLERS
from nnl.converters.tensorflow.messages import code_of_dtype
from nnl.converters.tflite.building import Builder, Value, reads
from nnl.converters.tflite.tensorflow_names import IN_TENSORFLOW

_MOVE = "BROADCAST_TO CONCATENATION PACK REVERSE_V2 SLICE SPLIT SPLIT_V STRIDED_SLICE TILE UNPACK"
_COMPUTE = (
    "ARG_MAX ARG_MIN BATCH_TO_SPACE_ND BROADCAST_ARGS CUMSUM DEPTH_TO_SPACE FILL GATHER_ND "
    "LEAKY_RELU LOCAL_RESPONSE_NORMALIZATION LOG_SOFTMAX MATRIX_DIAG MEAN MIRROR_PAD ONE_HOT PAD "
    "PADV2 RANGE RANK REDUCE_ALL REDUCE_ANY REDUCE_MAX REDUCE_MIN REDUCE_PROD RESIZE_BILINEAR "
    "RESIZE_NEAREST_NEIGHBOR REVERSE_SEQUENCE SCATTER_ND SELECT SELECT_V2 SHAPE SPACE_TO_BATCH_ND "
    "SPACE_TO_DEPTH SUM TOPK_V2"
)


class _Node:
    """An operator as TensorFlow's importers see a node."""

    def __init__(self, b: Builder, op: str) -> None:
        self.op, self._values = op, dict(b.op.options)
        self._values["num_split"] = len(b.outs)
        self._values["depth_radius"] = self._values.get("radius")
        if op == "Shape":  # the two formats number their types differently
            self._values["out_type"] = code_of_dtype(b.outs[0].dtype)
        if op == "MirrorPad":
            self._values["mode"] = "SYMMETRIC" if self._values["mode"] else "REFLECT"

    def attr(self, name: str, default: Any = None) -> Any:
        return self._values.get(name, default)


class _Context:
    """What the importers ask of a run of a graph."""

    def __init__(self) -> None:
        self.axes = Axes()

    def typed(self, y: Any, code: int | None) -> Any:
        return y  # the file says what its tensors are

    def given(self, b: Builder, v: Value, known: bool) -> Any:
        """A value as they have it: an array, or a Variable that may be held in another order."""
        if v.known and (known or not v.rank or v.x.dtype.kind != "f"):
            return b.array(v, "")
        y = b.held(v)
        if not v.known and v.order != plain(v.rank):
            self.axes.held[y.edge.key] = y, v.x, step(v.order, plain(v.rank))
        return y

    def value(self, y: Any) -> Value:
        """The other way round."""
        if isinstance(y, (np.ndarray, np.generic)):
            return Value(np.asarray(y), plain(y.ndim))
        source, axes = self.axes.of(y)
        return Value(source, tuple(int(a) for a in np.argsort(axes)))


def _importer(op: str) -> Callable[..., Any]:
    def importer(b: Builder, *vs: Value) -> Any:
        ctx = _Context()
        known = all(v.known for v in vs)
        xs = [ctx.given(b, v, known) for v in vs]
        if op == "ConcatV2":
            xs.append(np.array(b.op.options["axis"]))
        made = HANDLERS[op](ctx, _Node(b, op), *xs)
        if isinstance(made, (list, tuple)):
            return [ctx.value(y) for y in made]
        return b.activated(ctx.value(made)) if op == "ConcatV2" else ctx.value(made)

    return importer


for _listed in (_MOVE, _COMPUTE):
    for _name in _listed.split():
        reads(_name, parts=_listed is _MOVE)(_importer(IN_TENSORFLOW[_name]))
