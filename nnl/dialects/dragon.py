# SPDX-License-Identifier: Apache-2.0
"""Tiny-Dragon: tensors, operators and a workspace, and Theano's functions of them.

    from dragon.core.tensor import Tensor
    import dragon.core.workspace as ws, dragon.ops as ops
    import dragon.vm.theano as theano, dragon.vm.theano.tensor as T

runs where "dragon" is replaced by "nnl.dialects.dragon".

Source: Dragon: a computation graph virtual machine based deep learning framework, section 4.2.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

import nnl.dialects.theano as _theano
import nnl.functions as F
from nnl import workspace as _workspace
from nnl.core.graph.variable import Variable as _Variable

_DERIVED: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()  # what grad asked for, by cost


class Tensor(_workspace.Tensor):
    """A tensor of the current workspace, of any shape."""

    def __init__(self, name: str | Any, *args: Any, **options: Any) -> None:
        if isinstance(name, str):
            super().__init__(_workspace.current(), name)
        else:  # as an operator makes it
            super().__init__(name, *args, **options)

    def Variable(self) -> Tensor:
        """Itself: what is fed and what is kept are one kind."""
        return self


def _operator(type: str, function: Any) -> Any:
    def op(inputs: Any, **arguments: Any) -> Tensor:
        listed = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        made = _workspace.Operator(
            listed[0].workspace, type, function, listed, arguments, cls=Tensor
        )
        return made.outputs[0]  # type: ignore[return-value]

    op.__name__, op.__doc__ = type, f"nnl's function of tensors, in a list: {type}."
    return op


def _dot(a: _Variable, b: _Variable) -> _Variable:
    return F.affine(a, b)


_OPS = {
    "Dot": _dot, "Add": F.add2, "Sub": F.sub2, "Mul": F.mul2, "Div": F.div2, "Exp": F.exp,
    "Log": F.log, "Square": lambda x: x * x, "Relu": F.relu, "Sigmoid": F.sigmoid, "Tanh": F.tanh,
    "Softmax": F.softmax, "Sum": F.sum, "Mean": F.mean, "Concat": F.concatenate,
    "Reshape": F.reshape, "Transpose": F.transpose, "Conv2d": F.convolution, "Dropout": F.dropout,
}  # fmt: skip


def FeedTensor(tensor: Any, value: Any) -> None:
    """Set the value of a tensor, or of that of a name."""
    _workspace.current().feed(tensor, value)


def FetchTensor(tensor: Any) -> np.ndarray[Any, Any]:
    """The value of a tensor, or of that of a name."""
    return _workspace.current().fetch(tensor)


def HasTensor(tensor: Any) -> bool:
    """Whether the workspace has a tensor of this name."""
    return str(getattr(tensor, "key", tensor)) in _workspace.current()


def ResetWorkspace() -> None:
    """Forget all tensors and functions."""
    _workspace.current().reset()


def _grad(cost: Any, wrt: Any, **more: Any) -> Any:
    """The gradients of the sum of a tensor, computed by each function that computes the tensor."""
    wanted = list(wrt) if isinstance(wrt, (list, tuple)) else [wrt]
    made = _workspace.gradients([cost], wanted, cls=Tensor)
    _DERIVED.setdefault(cost, []).extend(made)
    return made if isinstance(wrt, (list, tuple)) else made[0]


def _function(inputs: Any = (), outputs: Any = None, **options: Any) -> Any:
    """As in Theano; gradients that were asked for of outputs are computed too."""
    listed = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs] if outputs else []
    more = [g for y in listed for g in _DERIVED.get(y, ())]
    f = _theano.function(inputs, [*listed, *more], **options)
    single = outputs is not None and not isinstance(outputs, (list, tuple))
    f.form = lambda found: found[0] if single else found[: len(listed)]
    return f


def _module(path: str, **names: Any) -> ModuleType:
    made = ModuleType(f"{__name__}.{path}", f"dragon.{path}")
    made.__dict__.update(names)
    made.__path__ = []  # type: ignore[attr-defined]
    sys.modules[made.__name__] = made
    return made


__path__: list[str] = []
_tensors = {k: v for k, v in vars(_theano.tensor).items() if not k.startswith("_")}
core = _module("core")
core.tensor = _module("core.tensor", Tensor=Tensor)  # type: ignore[attr-defined]
core.workspace = _module(  # type: ignore[attr-defined]
    "core.workspace", FeedTensor=FeedTensor, FetchTensor=FetchTensor, HasTensor=HasTensor,
    ResetWorkspace=ResetWorkspace,
)  # fmt: skip
ops = _module("ops", **{name: _operator(name, f) for name, f in _OPS.items()})
vm = _module("vm")
vm.theano = _module(  # type: ignore[attr-defined]
    "vm.theano", function=_function, shared=_theano.shared, scan=_theano.scan, config=_theano.config
)
vm.theano.tensor = _module("vm.theano.tensor", **_tensors | {"grad": _grad})  # type: ignore[attr-defined]
