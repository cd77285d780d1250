# SPDX-License-Identifier: Apache-2.0
"""Operators of one's own: a subclass with a body in Python or C++, which all that train can run."""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from nnl.converters.onnx.file.operators import Node, add_class, value_at

DOMAIN = "user"


class Operation(Node):
    """Base of operators of one's own. A subclass can be put into graphs and files like any node.

        class Huber(Operation):
            takes, gives = ("X", "T"), ("L",)
            delta: float = 1.0                                  # an attribute with its default

            def forward(self, x, t):
                d = np.abs(x - t)
                return np.where(d < self.delta, d * d / 2, self.delta * (d - self.delta / 2)).sum()

            def backward(self, inputs, outputs, grads):
                x, t = inputs
                g = np.clip(x - t, -self.delta, self.delta) * grads[0]
                return g, -g

            def output_shapes(self, x, t):
                return [()]

        network.add_node(Huber("y", "t", outputs="loss"))

    Class attributes:
        takes, gives: What its inputs and outputs are called, for the members i_* and o_*.
    """

    domain = DOMAIN
    takes: ClassVar[tuple[str, ...]] = ("X",)
    gives: ClassVar[tuple[str, ...]] = ("Y",)
    defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, abstract: bool = False, **kw: Any) -> None:
        super().__init_subclass__(**kw)
        if abstract:
            return
        cls.op_type, cls.since = cls.__dict__.get("op_type", cls.__name__), 1
        annotated = inspect.get_annotations(cls).items()
        own = [n for n, a in annotated if n in vars(cls) and "ClassVar" not in str(a)]
        cls.defaults = {**cls.defaults, **{n: vars(cls)[n] for n in own}}
        for prefix, values, names in (("i_", "inputs", cls.takes), ("o_", "outputs", cls.gives)):
            for index, name in enumerate(names):
                setattr(cls, prefix + name, value_at(values, index))
        add_class(cls)

    def _given(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            if name not in self.defaults:
                raise self.error(
                    f"{self.op_type} has no attribute {name!r}, it has {sorted(self.defaults)}"
                )
            setattr(self, name, value)

    def __init__(self, *inputs: str, **given: Any) -> None:
        super().__init__(*inputs, **given)
        if len(self.inputs) != len(self.takes) or len(self.outputs) != len(self.gives):
            raise self.error(
                f"has {len(self.inputs)} inputs and {len(self.outputs)} outputs, wanted "
                f"{len(self.takes)} {self.takes} and {len(self.gives)} {self.gives}"
            )
        self._given(**self.attributes)

    def forward(self, *inputs: Any) -> Any:
        """The output of numpy arrays, or a tuple of outputs."""
        raise NotImplementedError(f"{self.op_type}: implement forward(inputs...)")

    def backward(self, inputs: Sequence[Any], outputs: Sequence[Any], grads: Sequence[Any]) -> Any:
        """The gradient of every input, as a tuple; None where there is none.

        Args:
            grads: Gradients of the outputs.
        """
        raise NotImplementedError(f"{self.op_type}: implement backward(inputs, outputs, grads)")

    def output_shapes(self, *shapes: tuple[int, ...]) -> Sequence[tuple[int, ...]]:
        """Shapes of the outputs for inputs of these shapes; here that of the first input."""
        return [shapes[0]] * len(self.gives)

    def computed(self, inputs: Sequence[Any]) -> list[Any]:
        """forward() as a list of arrays of the first input's dtype."""
        outs = self.forward(*inputs)
        outs = outs if isinstance(outs, tuple) else (outs,)
        return [np.asarray(y, inputs[0].dtype) for y in outs]

    def gradients(
        self, inputs: Sequence[Any], outputs: Sequence[Any], grads: Sequence[Any]
    ) -> list[Any]:
        """backward() as a list of arrays, zeros where it gives none."""
        found = self.backward(inputs, outputs, grads)
        found = found if isinstance(found, tuple) else (found,)
        return [
            np.zeros_like(x) if g is None else np.asarray(g, x.dtype).reshape(x.shape)
            for x, g in zip(inputs, found, strict=True)
        ]


HEADER = """
#include <cmath>
#include <cstdint>
struct Tensor { float* data; int64_t size; int64_t rank; const int64_t* shape; };
extern "C" void forward(const Tensor* in, Tensor* out, const double* attributes);
extern "C" void backward(const Tensor* in, const Tensor* out, const Tensor* grad_out,
                         Tensor* grad_in, const double* attributes);
"""


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("rank", ctypes.c_int64),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
    ]


class CppOperation(Operation, abstract=True):
    """An operator whose body is C++, compiled when it runs for the first time.

        class Cube(CppOperation):
            source = '''
            extern "C" void forward(const Tensor* in, Tensor* out, const double*) {
                for (int64_t i = 0; i < in->size; ++i)
                    out->data[i] = in->data[i] * in->data[i] * in->data[i];
            }
            extern "C" void backward(const Tensor* in, const Tensor*, const Tensor* grad_out,
                                     Tensor* grad_in, const double*) {
                for (int64_t i = 0; i < in->size; ++i)
                    grad_in->data[i] = 3 * in->data[i] * in->data[i] * grad_out->data[i];
            }'''

    Arrays are float32 and contiguous; `attributes` are the numbers among the attributes in the
    order of the class. Results are zero before the call.
    """

    source: ClassVar[str] = ""

    def forward(self, *inputs: Any) -> Any:
        shapes = self.output_shapes(*[x.shape for x in inputs])
        outs = [np.zeros(s, np.float32) for s in shapes]
        self._call("forward", inputs, outs)
        return tuple(outs)

    def backward(self, inputs: Sequence[Any], outputs: Sequence[Any], grads: Sequence[Any]) -> Any:
        found = [np.zeros(x.shape, np.float32) for x in inputs]
        self._call("backward", inputs, outputs, grads, found)
        return tuple(found)

    def _call(self, name: str, *groups: Sequence[Any]) -> None:
        kept = []  # what the pointers point to
        arguments: list[Any] = []
        for arrays in groups:
            tensors = (_Tensor * len(arrays))()
            for i, a in enumerate(arrays):
                a = np.ascontiguousarray(a, np.float32).reshape(np.shape(a))
                shape = (ctypes.c_int64 * a.ndim)(*a.shape)
                tensors[i] = _Tensor(a.ctypes.data, a.size, a.ndim, shape)
                kept += [a, shape]
            arguments.append(tensors)
        numbers = [float(getattr(self, n)) for n in self.defaults]
        getattr(library(self.op_type, self.source), name)(
            *arguments, (ctypes.c_double * len(numbers))(*numbers)
        )


_LIBRARIES: dict[str, Any] = {}


def compiler() -> str | None:
    """The C++ compiler; None if there is none."""
    return os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")


def library(name: str, source: str) -> Any:
    """The compiled body of an operator.

    Raises:
        ModuleNotFoundError: There is no C++ compiler.
        ValueError: The compiler refuses the source; its words are in the message.
    """
    found = _LIBRARIES.get(source)
    if found is None:
        program = compiler()
        if program is None:
            raise ModuleNotFoundError(
                f"{name}: its body is C++ and there is no compiler: install g++, or set CXX"
            )
        key = hashlib.sha256((HEADER + source).encode()).hexdigest()[:16]
        with tempfile.TemporaryDirectory(prefix="nnl-operation-") as folder:
            file, made = Path(folder) / f"{name}.cpp", Path(folder) / f"{key}.so"
            file.write_text(HEADER + source, encoding="utf-8")
            done = subprocess.run(
                [program, "-std=c++17", "-O2", "-shared", "-fPIC", str(file), "-o", str(made)],
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise ValueError(f"{name}: the compiler refuses its body:\n{done.stderr}")
            found = _LIBRARIES[source] = ctypes.CDLL(str(made))
    return found
