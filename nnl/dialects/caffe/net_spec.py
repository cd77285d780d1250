# SPDX-License-Identifier: Apache-2.0
"""Networks written in Python: `layers` makes layers, NetSpec names them, both give prototxts."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

from nnl.converters.caffe.messages import messages
from nnl.core.arguments.annotations import shown
from nnl.core.arguments.suggest import did_you_mean
from nnl.dialects.caffe.layer import KINDS
from nnl.dialects.caffe.proto import caffe_pb2

# types whose parameters are those of another one
_ALIKE = {
    "Deconvolution": "Convolution",
    "LSTM": "Recurrent",
    "RNN": "Recurrent",
    "SoftmaxWithLoss": "Softmax",
}


class Top:
    """A blob that a layer makes."""

    def __init__(self, layer: LayerSpec) -> None:
        self.fn = layer

    def to_proto(self) -> Any:
        """The NetParameter of all layers that this blob is computed by."""
        return to_proto(self)


class LayerSpec:
    """A layer of a network that is being written: its type, bottoms, tops and parameters."""

    def __init__(self, type: str, bottoms: tuple[Any, ...], params: dict[str, Any]) -> None:
        self.type_name, self.inputs = type, bottoms
        for i, bottom in enumerate(bottoms):
            if not isinstance(bottom, Top):
                raise TypeError(f"{type}: bottom {i} is {shown(bottom)}, wanted a top of a layer")
        ntop, self.in_place = params.pop("ntop", 1), params.pop("in_place", False)
        self.name = params.pop("name", None)
        self.params = params
        self.tops = tuple(Top(self) for _ in range(ntop))
        self._message()  # says now what is wrong with the parameters

    def to_proto(self) -> Any:
        """The NetParameter of all layers that this one needs, and of itself."""
        return to_proto(self)

    def _message(self) -> Any:
        message = messages()["LayerParameter"](type=self.type_name)
        of = f"{_ALIKE.get(self.type_name, self.type_name)}Parameter"
        own = next((f.name for f in message.DESCRIPTOR.fields if _type_of(f) == of), None)
        for key, value in self.params.items():
            to = message
            if own is not None and not key.endswith("param"):
                part = getattr(message, own)
                if key in _fields(part) or key not in _fields(message):
                    to = part
                    part.SetInParent()
            try:
                _assign(to, key, value)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{self.type_name}: {key}={value!r}: {error}") from None
        return message

    def write(self, net: Any, names: dict[Any, str], counts: Counter[str]) -> None:
        """Add this layer to a NetParameter, which has those that it needs."""
        message = self._message()
        for top in self.tops:
            _named(top, self.type_name, names, counts)
        own = names[self.tops[0]] if self.tops else _named(self, self.type_name, names, counts)
        message.name = self.name or own
        message.bottom.extend(names[b] for b in self.inputs)
        if self.in_place:
            names.update(zip(self.tops, message.bottom, strict=False))
        message.top.extend(names[t] for t in self.tops)
        net.layer.append(message)


def _type_of(field: Any) -> str:
    return "" if field.message_type is None else str(field.message_type.name)


def _fields(message: Any) -> Any:
    return message.DESCRIPTOR.fields_by_name


def _named(key: Any, type: str, names: dict[Any, str], counts: Counter[str]) -> str:
    if key not in names:
        counts[type] += 1
        names[key] = f"{type}{counts[type]}"
    return names[key]


def _assign(message: Any, key: str, value: Any) -> None:
    """Set a field: dicts are messages, what is repeated may be one value."""
    fields = _fields(message)
    if key not in fields:
        of = message.DESCRIPTOR.name
        raise ValueError(f"{of} has no field {key!r}{did_you_mean(key, fields)}")
    field = fields[key]
    if hasattr(getattr(message, key), "extend"):
        values = value if isinstance(value, (list, tuple)) else [value]
        if field.message_type is None:
            getattr(message, key).extend(values)
            return
        for v in values:
            _fill(getattr(message, key).add(), v)
    elif field.message_type is not None:
        getattr(message, key).SetInParent()
        _fill(getattr(message, key), value)
    else:
        setattr(message, key, value)


def _fill(message: Any, value: Any) -> None:
    if isinstance(value, dict):
        for k, v in value.items():
            _assign(message, k, v)
    else:
        message.CopyFrom(value)


class NetSpec:
    """A network that is written layer by layer: `n.conv1 = layers.Convolution(n.data, ...)`.

    The name of an attribute is that of the blob, and of the layer, whose first top it is.
    """

    tops: OrderedDict[str, Any]

    def __init__(self) -> None:
        object.__setattr__(self, "tops", OrderedDict())

    def __setattr__(self, name: str, top: Any) -> None:
        _check(top, f"NetSpec.{name}")
        self.tops[name] = top

    def __getattr__(self, name: str) -> Any:
        if name not in self.tops:
            raise AttributeError(
                f"NetSpec: no blob is called {name!r}{did_you_mean(name, self.tops)}"
            )
        return self.tops[name]

    __setitem__, __getitem__ = __setattr__, __getattr__

    def keys(self) -> list[str]:
        """The names of what was written."""
        return list(self.tops)

    def to_proto(self) -> Any:
        """The network as a NetParameter; `str` of it is a prototxt."""
        return _net({top: name for name, top in self.tops.items()}, self.tops.values())


def to_proto(*tops: Any) -> Any:
    """The NetParameter of the layers that some blobs need; they get names by type and number."""
    for i, top in enumerate(tops):
        _check(top, f"to_proto: argument {i}")
    return _net({}, tops)


def _check(top: Any, what: str) -> None:
    if not isinstance(top, (Top, LayerSpec)):
        raise TypeError(f"{what} is {shown(top)}, wanted a top of a layer")


def _net(names: dict[Any, str], tops: Any) -> Any:
    net, done, counts = messages()["NetParameter"](), set[LayerSpec](), Counter[str]()
    todo = [(top.fn if isinstance(top, Top) else top, False) for top in [*tops][::-1]]
    while todo:
        layer, ready = todo.pop()
        if ready:
            layer.write(net, names, counts)
        elif layer not in done:
            done.add(layer)
            todo += [(layer, True), *[(bottom.fn, False) for bottom in layer.inputs[::-1]]]
    return net


class _Layers:
    """`layers.Convolution(bottom, kernel_size=3, num_output=8)`: a layer of any type of Caffe.

    Each gives its top, several as a tuple (`ntop=2`), or itself (`ntop=0`). Parameters are those of
    the type, or fields of LayerParameter (`param=[dict(lr_mult=1)]`); `in_place=True` writes the
    result over the bottom.
    """

    def __getattr__(self, type: str) -> Callable[..., Any]:
        if type not in KINDS:
            raise AttributeError(f"there is no layer {type!r}{did_you_mean(type, KINDS)}")

        def layer(*bottoms: Any, **params: Any) -> Any:
            made = LayerSpec(type, bottoms, params)
            return made if not made.tops else made.tops if len(made.tops) > 1 else made.tops[0]

        return layer


class _Params:
    """`params.Pooling.MAX`: values of enums, by the type of the layer."""

    def __getattr__(self, type: str) -> Any:
        try:
            return getattr(caffe_pb2, f"{type}Parameter")
        except AttributeError as error:
            raise AttributeError(f"params: {error}") from None


layers, params = _Layers(), _Params()
