# SPDX-License-Identifier: Apache-2.0
"""Theano's names: `import nnl.dialects.theano as theano, nnl.dialects.theano.tensor as T`."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from nnl.dialects.theano import elements as _elements
from nnl.dialects.theano import function as _function
from nnl.dialects.theano import gradient, nnet, tensor
from nnl.dialects.theano import random as _random
from nnl.dialects.theano import scan as _scan
from nnl.dialects.theano import shaping as _shaping
from nnl.dialects.theano.function import In, Out, Param, SharedVariable, function, shared
from nnl.dialects.theano.gradient import clone, grad  # noqa: F401
from nnl.dialects.theano.methods import TensorVariable
from nnl.dialects.theano.scan import foldl, foldr, map, reduce, scan
from nnl.dialects.theano.variable import Apply, Config, Variable, config  # noqa: F401

__version__ = "1.0.5"


def debugprint(obj: Any, *args: Any, file: Any = None, **more: Any) -> None:
    """Print the program of a function, or the operators that a variable needs."""
    from nnl.workspace import needed

    if isinstance(obj, _function.Function):
        print(obj.text(), file=file)
        return
    for op in needed(obj if isinstance(obj, (list, tuple)) else [obj])[0]:
        print(f"{_words(op.outputs)} = {op.type}({_words(op.tensors)})", file=file)


def _words(tensors: Any) -> str:
    return ", ".join([str(t) for t in tensors])


dprint = debugprint


class Print:
    """What would print values while a program runs, which has no Python in it.

    Raises:
        NotImplementedError: It is used.
    """

    def __init__(self, message: str = "", attrs: Any = ("__str__",)) -> None:
        self.message = message

    def __call__(self, x: Any) -> Any:
        raise NotImplementedError("Print: add the variable to the outputs of the function instead")


def _module(path: str, *sources: Any, **names: Any) -> None:
    """A module of Theano's that has no file here."""
    made = ModuleType(f"{__name__}.{path}", f"theano.{path}")
    for source in sources:
        made.__dict__.update(tensor.own(source))
    made.__dict__.update(names)
    made.__path__ = []  # type: ignore[attr-defined]
    sys.modules[made.__name__] = made
    parent, _, last = path.rpartition(".")
    above = sys.modules[f"{__name__}.{parent}" if parent else __name__]
    if not hasattr(above, last):  # a function may have this name
        setattr(above, last, made)


_pooling = {k: getattr(nnet, k) for k in ("pool_2d", "pool_3d", "max_pool_2d")}
_streams = {k: getattr(_random, k) for k in ("RandomStreams", "MRG_RandomStreams")}
_sigmoids = {k: getattr(tensor, k) for k in ("sigmoid", "hard_sigmoid", "softplus", "softsign")}
_linear = {
    k: getattr(tensor, k)
    for k in """det matrix_inverse cholesky solve matrix_dot matrix_power kron norm trace diag
    extract_diag""".split()
}
_shared = {"SharedVariable": SharedVariable, "TensorSharedVariable": SharedVariable}
_compile = {"function": function, "shared": shared, "In": In, "Out": Out, "Param": Param}
_errors = {"UnusedInputError": _function.UnusedInputError}
_scans = {
    "scan": scan,
    "until": _scan.until,
    "map": map,
    "reduce": reduce,
    "foldl": foldl,
    "foldr": foldr,
}
_never = tensor.TensorConstant
_graph = {"Variable": Variable, "Apply": Apply, "Constant": _never}
_look = {
    k: getattr(gradient, k)
    for k in ("inputs", "ancestors", "is_same_graph", "equal_computations", "clone")
}
_module("tensor.basic", tensor)
for _path in ("nnet", "nnet.abstract_conv", "nnet.nnet", "nnet.bn", "nnet.neighbours", "nnet.sigm"):
    _module(f"tensor.{_path}", nnet, **_sigmoids)
_module("tensor.nnet.conv", conv2d=nnet.conv2d)
_module("tensor.nnet.conv3d2d", conv3d=nnet.conv3d_of_signals)
_module("tensor.signal")
_module("tensor.signal.pool", **_pooling)
_module("tensor.signal.downsample", **_pooling)
_module("tensor.shared_randomstreams", **_streams)
_module("tensor.raw_random", **_streams)
_module("tensor.extra_ops", _elements, _shaping, cumsum=tensor.cumsum, cumprod=tensor.cumprod)
_module("tensor.nlinalg", **_linear)
_module("tensor.slinalg", **_linear)
_module("tensor.sharedvar", **_shared)
_module("tensor.var", TensorVariable=TensorVariable, TensorConstant=_never)
_module("tensor.type", TensorType=tensor.TensorType)
_module("sandbox")
_module("sandbox.rng_mrg", **_streams)
_module("sandbox.cuda", cuda_available=False, cuda_enabled=False)
_module("ifelse", ifelse=_scan.ifelse)
_module("updates", OrderedUpdates=_function.OrderedUpdates)
_module("scan_module", **_scans)
_module("scan_module.scan_utils", until=_scan.until, **_look)
_module("compile", SharedVariable=SharedVariable, **_compile, **_errors)
_module("compile.sharedvalue", SharedVariable=SharedVariable, shared=shared)
_module("compile.function_module", **_errors)
_module("gof", **_graph)
_module("gof.graph", **_look, **_graph)
_module("gof.fg", MissingInputError=_function.MissingInputError)
_module("printing", debugprint=debugprint, pprint=str, pp=str, Print=Print)
pp = pprint = str
