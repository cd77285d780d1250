# SPDX-License-Identifier: Apache-2.0
"""What layers are made of: blobs, parameters, and the table of types."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nnl.converters.caffe.messages import messages
from nnl.core.arrays.array import NdArray
from nnl.core.graph.variable import Variable
from nnl.dialects.caffe.fillers import ALIKE, fill
from nnl.workspace import Operator, Tensor

if TYPE_CHECKING:
    from nnl.dialects.caffe.net import Net

Array = np.ndarray[Any, Any]
Sizes = tuple[int, ...]
MAX_ELEMENTS = 2**31 - 1  # of a blob, as in Caffe


class _Sized:
    """Sizes by the names of Caffe's four axes; subclasses have `shape`."""

    shape: Any

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def _size(self, axis: int) -> int:
        return int(self.shape[axis]) if axis < len(self.shape) else 1

    @property
    def num(self) -> int:
        """Size of the first axis."""
        return self._size(0)

    @property
    def channels(self) -> int:
        """Size of the second axis."""
        return self._size(1)

    @property
    def height(self) -> int:
        """Size of the third axis."""
        return self._size(2)

    @property
    def width(self) -> int:
        """Size of the fourth axis."""
        return self._size(3)


class Blob(Tensor, _Sized):
    """A tensor of a network: `data`, and `diff`, the gradient of the loss with respect to it."""

    net: Net

    @property
    def data(self) -> Array:
        """The value of the latest run, or what was written here; writable."""
        return self.net.value(self).data

    @property
    def diff(self) -> Array:
        """The gradient of the latest backward(); of what nothing reads, where that begins."""
        return self.net.gradient(self).data

    def reshape(self, *shape: int) -> None:
        """Give an input another shape; `Net.reshape` or `Net.forward` does so for what follows."""
        if self.operator is not None:
            raise ValueError(f"Blob.reshape: {self.name!r} is computed, wanted an input")
        sizes = checked(shape, f"Blob.reshape: {self.name!r}")
        if sizes != self.sizes:
            self.sizes, self.samples = sizes, [sizes, sizes]
            self.workspace.values.pop(self.key, None)
            self.net.stale = True


class Parameter(_Sized):
    """A parameter of a layer.

    Attributes:
        tensor: Its name and shape in the workspace, which keeps it.
        lr_mult, decay_mult: Of the learning rate and of weight_decay.
        turned: Whether its two axes are kept in the other order, in which products are fastest.
    """

    def __init__(self, tensor: Tensor, lr_mult: float, decay_mult: float, turned: bool) -> None:
        self.tensor, self.lr_mult, self.decay_mult = tensor, lr_mult, decay_mult
        self.turned = turned

    @property
    def variable(self) -> Variable:
        """What the parameter registry holds."""
        found = self.tensor.workspace.parameter(self.tensor.key)
        if found is None:
            raise KeyError(f"the workspace does not keep {self.tensor.name!r} any more")
        return found

    @property
    def shape(self) -> Sizes:
        """Its sizes, in Caffe's order of axes."""
        sizes = tuple(self.tensor.sizes or ())
        return sizes[::-1] if self.turned else sizes

    def _seen(self, array: Array) -> Array:
        return array.T if self.turned else array

    @property
    def data(self) -> Array:
        """Its value, writable."""
        return self._seen(self.variable.d)

    @property
    def diff(self) -> Array:
        """Its gradient, to which backward() adds; writable."""
        return self._seen(self.variable.g)

    def write(self, array: Array) -> None:
        """Copy an array of its shape into its value."""
        now = self.data
        if not self.turned:
            now[...] = array
            return
        for i in range(0, len(now), 32):  # so few rows that cache lines stay: 4 x faster
            now[i : i + 32] = array[i : i + 32]

    def set(self, array: Array) -> None:
        """Take an array of float32 as the value; its memory is shared where that is possible."""
        array = np.ascontiguousarray(self._seen(array), np.float32)
        v = self.variable
        v.data = NdArray.holding(v.spec, "host", array)


def checked(shape: Sequence[int], where: str) -> Sizes:
    """Sizes that a blob may have.

    Raises:
        ValueError: One is negative, or there are too many elements.
    """
    sizes = tuple(int(n) for n in shape)
    if min(sizes, default=0) < 0 or math.prod(sizes) > MAX_ELEMENTS:
        raise ValueError(f"{where}: no blob has the shape {sizes}")
    return sizes


class Layer:
    """A layer while it is built, and what is left of it: names, parameters, operators.

    Attributes:
        message: Its LayerParameter.
        test: Whether the network is for TEST.
        blobs: Its parameters.
        updates: (parameter, tensor of its next value) in training.
        source: Gives the values of tops, before every run, to layers that read data.
        weights: (number of a top, weight) of what it adds to the loss.
    """

    def __init__(self, net: Net, message: Any, index: int) -> None:
        self.net, self.message, self.index = net, message, index
        self.name, self.type = message.name, message.type
        self.test = net.phase == 1
        self.bottoms: list[Blob] = []
        self.tops: list[Blob] = []
        self.blobs: list[Parameter] = []
        self.updates: list[tuple[Parameter, Tensor]] = []
        self.operators: list[Operator] = []
        self.source: Callable[[], Sequence[Array]] | None = None
        self.given: list[Array] = []

    def __str__(self) -> str:
        return f"layer {self.name!r} ({self.type})"

    def fail(self, reason: str) -> ValueError:
        """An error that names the layer."""
        return ValueError(f"{self}: {reason}")

    def axis(self, number: int, ndim: int) -> int:
        """An axis of `ndim`, counted from the end if negative."""
        if not -ndim <= number < ndim:
            raise self.fail(f"axis {number} is not one of {ndim}")
        return number % ndim

    def weight(self, shape: Sequence[int], filler: Any, turned: bool = False) -> Tensor:
        """The next parameter: shared with what has its name in the network, or a new one.

        Args:
            filler: A FillerParameter, an array of float32, or the value of all elements; not
                learned if that is None.
            turned: Keep it with its two axes in the other order.
        """
        i, sizes = len(self.blobs), checked(shape, str(self))
        spec = self.message.param[i] if i < len(self.message.param) else None
        learned = filler is not None
        lr = 0.0 if not learned else 1.0 if spec is None else spec.lr_mult
        decay = 0.0 if not learned else 1.0 if spec is None else spec.decay_mult
        kept = sizes[::-1] if turned else sizes
        named = "" if spec is None else spec.name
        p = self.net.shared.get(named) if named else None
        if p is not None:
            if p.shape != sizes or p.turned != turned:
                raise self.fail(f"parameter {named!r} is {p.shape} elsewhere, {sizes} here")
            self.blobs.append(p)
            return p.tensor
        tensor = Tensor(self.net.workspace, f"{self.net.name}/{named or f'{self.name}/{i}'}", kept)
        p = Parameter(tensor, lr, decay, turned)
        value = self.net.stored(self, i, sizes)
        if value is None and isinstance(filler, np.ndarray):
            value = filler
        elif value is None:
            if not learned or isinstance(filler, (int, float)):
                filler = messages()["FillerParameter"](value=filler or 0.0)
            value = fill(sizes, filler, f"{self}: parameter {i}")
            if turned and filler.type in ALIKE:
                value = value.reshape(kept).T
        self.net.workspace.keep(tensor, np.zeros((), np.float32), need_grad=learned)
        v = p.variable
        v.reset_shape(kept, force=True)
        v.need_grad = learned
        p.set(value)
        self.blobs.append(p)
        if named:
            self.net.shared[named] = p
        return tensor

    def op(self, compute: Callable[..., Any], *inputs: Any, count: int = 1, **options: Any) -> Any:
        """The next top, computed of tensors: of several results the first."""
        name = self.net.name_of(self, len(self.tops))
        made = Operator(
            self.net.workspace, self.type, compute, inputs, name=name, cls=Blob, count=count,
            **options,
        )  # fmt: skip
        self.operators.append(made)
        for t in made.outputs:
            t.net = self.net
        self.tops.append(made.outputs[0])
        return made.outputs if count > 1 else made.outputs[0]

    def input(self, shape: Sequence[int]) -> Blob:
        """The next top, whose values are given."""
        sizes = checked(shape, str(self))
        top = Blob(self.net.workspace, self.net.name_of(self, len(self.tops)), sizes)
        top.net = self.net
        self.tops.append(top)
        return top

    def filler(self, message: Any, field: str) -> Any:
        """A filler; Caffe's default where none is set."""
        return (
            getattr(message, field) if message.HasField(field) else messages()["FillerParameter"]()
        )


@dataclass(frozen=True)
class Kind:
    """A type of layers.

    Attributes:
        build: Makes the tops: of the layer and its bottoms.
        bottoms, tops: Least and greatest number.
        loss: Whether its first top is part of the loss if nothing is said.
    """

    build: Callable[..., None]
    bottoms: tuple[int, int]
    tops: tuple[int, int]
    loss: bool = False


KINDS: dict[str, Kind] = {}
MANY = 10**6


def builds(
    *types: str,
    bottoms: int | tuple[int, int] = 1,
    tops: int | tuple[int, int] = 1,
    loss: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Note what builds the layers of some types."""

    def note(build: Callable[..., None]) -> Callable[..., None]:
        b = (bottoms, bottoms) if isinstance(bottoms, int) else bottoms
        t = (tops, tops) if isinstance(tops, int) else tops
        for type in types:
            KINDS[type] = Kind(build, b, t, loss)
        return build

    return note
