# SPDX-License-Identifier: Apache-2.0
"""Layers written in Python."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl.core.ops.python_function import PythonFunction
from nnl.dialects.caffe.layer import MANY, Array, Blob, Sizes, _Sized, builds, checked
from nnl.dialects.caffe.layer import Layer as Built


class Layer:
    """Base of layers written in Python: `type: "Python"` names its module and class.

    setup(bottom, top)                            once
    reshape(bottom, top)                          gives the tops their shapes: top[i].reshape(...)
    forward(bottom, top)                          writes top[i].data
    backward(top, propagate_down, bottom)         writes bottom[i].diff where propagate_down[i]

    Attributes:
        param_str: What the prototxt says to it.
        phase: caffe.TRAIN or caffe.TEST.
        blobs: Its parameters: setup() makes each by blobs.add_blob(*shape) and writes its data;
            backward() adds to its diff, which begins at 0.
    """

    param_str: str = ""
    phase: int
    blobs: Blobs

    def setup(self, bottom: list[Any], top: list[Any]) -> None:
        """Prepare; nothing unless it is overridden."""

    def reshape(self, bottom: list[Any], top: list[Any]) -> None:
        """Give the tops their shapes."""
        raise NotImplementedError(f"{type(self).__name__}: implement reshape(bottom, top)")

    def forward(self, bottom: list[Any], top: list[Any]) -> None:
        """Write the data of the tops."""
        raise NotImplementedError(f"{type(self).__name__}: implement forward(bottom, top)")

    def backward(self, top: list[Any], propagate_down: list[bool], bottom: list[Any]) -> None:
        """Write the gradients of the bottoms; none unless it is overridden."""


class _Seen(_Sized):
    """A blob as a layer in Python sees it."""

    def __init__(self, shape: Sizes) -> None:
        self.shape = shape
        self.data: Array = np.zeros(shape, np.float32)
        self.diff: Array = np.zeros(shape, np.float32)

    def reshape(self, *shape: int) -> None:
        """Take another shape."""
        sizes = checked(shape, "reshape")
        if sizes != self.shape:
            self.__init__(sizes)


class Blobs(list[Any]):
    """The parameters of a layer in Python."""

    def add_blob(self, *shape: int) -> None:
        """One more, of zeros."""
        self.append(_Seen(checked(shape, "add_blob")))


class _Call(PythonFunction):
    """A layer in Python as a function of the engine."""

    def __init__(self, user: Layer, bottoms: Sequence[Sizes], tops: int) -> None:
        super().__init__()
        self.user = user
        self.bottom, self.top = [_Seen(s) for s in bottoms], [_Seen(()) for _ in range(tops)]
        user.setup(self.bottom, self.top)
        self.inputs = [*self.bottom, *user.blobs]

    def min_outputs(self) -> int:
        return len(self.top)

    def setup_impl(self, inputs: Any, outputs: Any) -> None:
        for seen, x in zip(self.bottom, inputs, strict=False):
            seen.reshape(*x.shape)
        self.user.reshape(self.bottom, self.top)
        for seen, y in zip(self.top, outputs, strict=True):
            y.reset_shape(seen.shape, True)

    def forward_impl(self, inputs: Any, outputs: Any) -> None:
        for seen, x in zip(self.inputs, inputs, strict=True):
            seen.data[...] = x.d
        self.user.forward(self.bottom, self.top)
        for seen, y in zip(self.top, outputs, strict=True):
            y.d = seen.data

    def backward_impl(self, inputs: Any, outputs: Any, propagate_down: Any, accum: Any) -> None:
        for seen, x in zip(self.inputs, inputs, strict=True):
            seen.data[...], seen.diff[...] = x.d, 0
        for seen, y in zip(self.top, outputs, strict=True):
            seen.data[...], seen.diff[...] = y.d, y.g
        self.user.backward(self.top, propagate_down[: len(self.bottom)], self.bottom)
        for seen, x, down, add in zip(self.inputs, inputs, propagate_down, accum, strict=True):
            if down:
                x.g = x.g + seen.diff if add else seen.diff

    def source(self) -> list[Array]:
        """The values of the tops of a layer without bottoms."""
        self.user.reshape(self.bottom, self.top)
        self.user.forward(self.bottom, self.top)
        return [seen.data for seen in self.top]


@builds("Python", bottoms=(0, MANY), tops=(0, MANY))
def python(layer: Built, *xs: Blob) -> None:
    p = layer.message.python_param
    if layer.net.deploy:
        raise layer.fail("it is code in Python, which is not run here")
    try:
        found = getattr(importlib.import_module(p.module), p.layer)
    except (ImportError, AttributeError) as error:
        raise layer.fail(f"python_param: {error}") from None
    if not (isinstance(found, type) and issubclass(found, Layer)):
        raise layer.fail(f"{p.module}.{p.layer} is no class derived from caffe.Layer")
    user = found()
    user.param_str, user.phase, user.blobs = p.param_str, layer.net.phase, Blobs()
    n = len(layer.message.top)
    call = _Call(user, [x.sizes for x in xs], n)
    weights = [layer.weight(seen.shape, seen.data) for seen in user.blobs]
    if not xs:
        user.reshape(call.bottom, call.top)
        for seen in call.top:
            layer.input(seen.shape)
        layer.source = call.source
        return

    def all_tops(*xs: Any) -> Any:
        return call(*xs)

    if n:
        made = layer.op(all_tops, *xs, *weights, count=n)
        layer.tops += made[1:] if n > 1 else []
