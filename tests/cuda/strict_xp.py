# SPDX-License-Identifier: Apache-2.0
"""An array module that has what CuPy has and refuses what CuPy refuses, on numpy arrays.

Names and arguments come from cupy_names.json, a list of the installed CuPy. Its arrays do not
become numpy arrays by themselves, numpy's functions do not take them, and its functions take no
numpy arrays (CuPy's own dispatch numpy's functions, which code here does not rely on). Results of
rank 0 stay arrays. What would wait for the device on a GPU is counted: `synchronisations`.
"""

import json
import operator
import weakref
from contextlib import contextmanager
from pathlib import Path

import numpy as np

NAMES = json.loads((Path(__file__).parent / "cupy_names.json").read_text())
UFUNCS = frozenset(NAMES["ufuncs"])
METHODS = frozenset(NAMES["ndarray"])
# Their results have a shape that the values decide, which the host must know.
WAIT = frozenset(
    ["nonzero", "flatnonzero", "argwhere", "unique", "extract", "compress", "bincount", "histogram"]
)
PRODUCTS = frozenset(["dot", "inner", "outer", "tensordot", "vdot"])  # cuBLAS computes them
REDUCTIONS = {
    **dict.fromkeys(["sum", "prod", "mean"], {"axis", "dtype", "out", "keepdims"}),
    **dict.fromkeys(["max", "min", "all", "any"], {"axis", "out", "keepdims"}),
    **dict.fromkeys(["argmax", "argmin"], {"axis", "dtype", "out", "keepdims"}),
}
counts = {"synchronisations": 0, "capturing": False}
_memory = {}  # id of an array that owns memory -> a weak reference to it


def wait():
    if counts["capturing"]:
        raise RuntimeError(
            "cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing"
        )
    counts["synchronisations"] += 1


def multiply():
    """CuPy refuses to call cuBLAS and cuSOLVER while a graph is recorded."""
    if counts["capturing"]:
        raise NotImplementedError(
            "calling cuBLAS API during stream capture is currently unsupported"
        )


def copy_list(key):
    """A list in an index is an array of the host, which CuPy copies: no graph can contain that."""
    keys = key if isinstance(key, tuple) else (key,)
    if counts["capturing"] and any(isinstance(k, list) for k in keys):
        wait()


def remember(a):
    """Note memory of the device."""
    key = id(a)
    _memory[key] = weakref.ref(a, lambda _: _memory.pop(key, None))


@contextmanager
def put_back():
    """Let all memory of the device be as before after the block."""
    before = [(a, a.copy()) for a in (r() for r in list(_memory.values())) if a is not None]
    try:
        yield
    finally:
        for a, copy in before:
            a[...] = copy


def plain(x, where):
    """The numpy array inside, of scalars the scalar, of sequences the same of their items."""
    if isinstance(x, StrictArray):
        return x._a
    if isinstance(x, np.ndarray):
        raise TypeError(f"{where}: Unsupported type {type(x)}")
    if isinstance(x, (list, tuple)):
        return type(x)([plain(v, where) for v in x])
    return x


def wrap(y):
    if isinstance(y, (np.ndarray, np.generic)):
        return StrictArray(np.asarray(y))
    if isinstance(y, (tuple, list)):
        return type(y)(wrap(v) for v in y) if type(y) in (tuple, list) else tuple(map(wrap, y))
    return y


class StrictArray:
    """Stands for cupy.ndarray."""

    __array_ufunc__ = None  # numpy's functions and operators do not take it
    __slots__ = ("_a", "__weakref__")

    def __init__(self, a):
        self._a = a
        if a.base is None:
            remember(a)

    def __array__(self, *args, **kw):
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. "
            "Please use `.get()` to construct a NumPy array explicitly."
        )

    def __array_function__(self, func, types, args, kwargs):
        raise TypeError(f"numpy.{func.__name__} was given an array of the device")

    def get(self):
        wait()
        return self._a.copy()

    def item(self, *args):
        wait()
        return self._a.item(*args)

    def tolist(self):
        wait()
        return self._a.tolist()

    def __len__(self):
        return len(self._a)

    def __iter__(self):
        return (StrictArray(np.asarray(v)) for v in self._a)

    def __getitem__(self, key):
        copy_list(key)
        for k in key if isinstance(key, tuple) else (key,):
            if isinstance(k, StrictArray) and k._a.dtype == bool:
                wait()
        return wrap(self._a[plain(key, "index")])

    def __setitem__(self, key, value):
        copy_list(key)
        keys = key if isinstance(key, tuple) else (key,)
        if any(isinstance(k, StrictArray) and k._a.dtype == bool for k in keys):
            wait()  # CuPy counts what is True
        self._a[plain(key, "index")] = plain(value, "value")

    def __getattr__(self, name):
        if name not in METHODS:
            raise AttributeError(f"'ndarray' object has no attribute {name!r}")
        found = getattr(self._a, name)
        if not callable(found):
            return wrap(found)

        def call(*args, **kw):
            if name in REDUCTIONS and not set(kw) <= REDUCTIONS[name]:
                raise TypeError(f"{name}() got an unexpected keyword argument in {set(kw)}")
            if name in WAIT:
                wait()
            args = plain(args, name)
            out = kw.get("out")
            y = found(*args, **{k: plain(v, name) for k, v in kw.items()})
            return out if out is not None else wrap(y)

        return call

    @property
    def T(self):
        return StrictArray(self._a.T)

    @property
    def dtype(self):
        return self._a.dtype

    @property
    def shape(self):
        return self._a.shape

    @property
    def size(self):
        return self._a.size

    @property
    def ndim(self):
        return self._a.ndim

    @property
    def nbytes(self):
        return self._a.nbytes

    @property
    def flags(self):
        return self._a.flags

    @property
    def base(self):
        return self._a.base

    def __bool__(self):
        wait()
        return bool(self._a)

    def __int__(self):
        wait()
        return int(self._a)

    def __float__(self):
        wait()
        return float(self._a)

    def __index__(self):
        raise TypeError("only integer scalar arrays can be converted to a scalar index")

    def __repr__(self):
        return f"strict {self._a!r}"

    __hash__ = None


def _operator(name):
    f = getattr(operator, name)

    def forward(self, other):
        if isinstance(other, np.ndarray):
            raise TypeError(f"{name}: Unsupported type {type(other)}")
        if name == "matmul":
            multiply()
        return wrap(f(self._a, plain(other, name)))

    def reflected(self, other):
        if isinstance(other, np.ndarray):
            raise TypeError(f"{name}: Unsupported type {type(other)}")
        return wrap(f(plain(other, name), self._a))

    return forward, reflected


def _in_place(name):
    f = getattr(operator, name)

    def run(self, other):
        self._a = f(self._a, plain(other, name))
        return self

    return run


for _name in "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split():
    _n = _name if _name not in ("and", "or") else f"{_name}_"
    _f, _r = _operator(_n)
    setattr(StrictArray, f"__{_name}__", _f)
    setattr(StrictArray, f"__r{_name}__", _r)
    setattr(StrictArray, f"__i{_name}__", _in_place(f"i{_name}"))
for _name in "lt le gt ge eq ne".split():
    setattr(StrictArray, f"__{_name}__", _operator(_name)[0])
for _name in "neg pos abs invert".split():
    _f = getattr(operator, _name)
    setattr(StrictArray, f"__{_name}__", lambda self, f=_f: wrap(f(self._a)))


class Ufunc:
    """A function of arrays with out=; the methods that cupy.ufunc has."""

    def __init__(self, name):
        self.name, self.f = name, getattr(np, name)

    def __call__(self, *args, **kw):
        if not set(kw) <= {"out", "dtype", "casting"}:
            raise TypeError(f"{self.name}: wrong arguments {set(kw)}")
        return _call(self.name, self.f, args, kw)

    def __getattr__(self, name):
        if name not in NAMES["ufunc"]:
            raise AttributeError(f"'ufunc' object has no attribute {name!r}")
        f = getattr(self.f, name)
        if not callable(f):
            return f
        return lambda *args, **kw: _call(f"{self.name}.{name}", f, args, kw)


def _call(name, f, args, kw):
    if name == "matmul":
        multiply()
    out = kw.get("out")
    y = f(*plain(args, name), **{k: plain(v, name) for k, v in kw.items()})
    return out if out is not None else wrap(y)


def asarray(a, dtype=None, order=None, *, copy=None, blocking=False):
    if isinstance(a, StrictArray):
        if dtype is None or a._a.dtype == dtype:
            return (
                a if order is None or a._a.flags.c_contiguous else wrap(np.array(a._a, order="C"))
            )
        return wrap(a._a.astype(dtype))
    return wrap(np.array(_unwrapped(a), dtype))


def array(obj, dtype=None, copy=True, order="K", subok=False, ndmin=0, *, blocking=False):
    return wrap(np.array(_unwrapped(obj), dtype, order=order, ndmin=ndmin))


def empty(shape, dtype=float, order="C"):
    """At a multiple of 256 bytes, as CuPy's pools give memory."""
    a = np.empty(shape, dtype, order)
    memory = np.empty(a.nbytes + 256, np.uint8)
    remember(memory)
    start = -memory.ctypes.data % 256
    return wrap(np.ndarray(a.shape, a.dtype, memory.data, start, a.strides))


def _unwrapped(a):
    """What array() takes: numpy arrays too, and sequences of the device's arrays."""
    if isinstance(a, (list, tuple)):
        return [_unwrapped(v) for v in a]
    return a._a if isinstance(a, StrictArray) else a


class Module:
    """cupy, or a module in it."""

    own = {"asarray": asarray, "array": array, "empty": empty, "ndarray": StrictArray}

    def __init__(self, path="", module=np):
        self._path, self._module = path, module
        self._names = frozenset(NAMES["modules"].get(path, ()))
        self._arguments = NAMES["arguments"].get(path, {})

    def __getattr__(self, name):
        path = f"{self._path}.{name}".lstrip(".")
        if path in NAMES["modules"] or path == "lib":
            return self.__dict__.setdefault(name, Module(path, getattr(self._module, name)))
        if name not in self._names and self._path != "lib":
            raise AttributeError(f"module 'cupy' has no attribute {path!r}")
        if not self._path and name in self.own:
            return self.own[name]
        if not self._path and name in UFUNCS:
            made = Ufunc(name)
        else:
            found = getattr(self._module, name)
            made = found if isinstance(found, type) or not callable(found) else self._function(name)
        return self.__dict__.setdefault(name, made)

    def _function(self, name):
        f, allowed = getattr(self._module, name), self._arguments.get(name)

        def call(*args, **kw):
            if allowed is not None and not set(kw) <= set(allowed):
                raise TypeError(f"cupy.{name}() takes {allowed}, got {sorted(kw)}")
            if self._path == "fft" and 0 in args[0].shape:
                raise ValueError("Invalid number of FFT data points (0) specified.")
            if name in WAIT or (name == "where" and len(args) == 1):
                wait()
            if name in PRODUCTS or self._path == "linalg" or (name == "einsum" and len(args) > 2):
                multiply()
            if name == "ascontiguousarray" and isinstance(args[0], np.ndarray):
                return wrap(f(*args, **kw))
            return _call(name, f, args, kw)

        return call


xp = Module()
