# SPDX-License-Identifier: Apache-2.0
"""Which backends compute, on which device and in which floating-point type."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

__all__ = ["Context"]

if TYPE_CHECKING:
    from nnl.core.interpreters.interpreter import Interpreter


class Space(Protocol):
    """A memory space: how its buffers travel to and from host memory, and what computes there."""

    def to_host(self, buf: Any) -> np.ndarray[Any, Any]: ...

    def from_host(self, array: np.ndarray[Any, Any]) -> Any: ...

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any: ...

    def library(self) -> Any:
        """The kernels that plans use, None if there are none."""

    def synchronize(self) -> None:
        """Wait until all work is done."""


class HostSpace:
    """Host memory: a buffer is a numpy array."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        return np.empty(shape, dtype)

    def library(self) -> Any:
        return None

    def to_host(self, buf: Any) -> np.ndarray[Any, Any]:
        return buf  # type: ignore[no-any-return]

    def from_host(self, array: np.ndarray[Any, Any]) -> Any:
        return array

    def synchronize(self) -> None:
        pass


SPACES: dict[str, Space] = {"host": HostSpace()}
REORDERED: set[str] = set()  # those whose buffers are not in the order of the shape


@dataclass(frozen=True, eq=False)
class Backend:
    """A provider of kernels.

    Attributes:
        name: Key under which kernels are registered with an op.
        space: Where its kernels read and write.
        bind: (op, attrs, in_specs, out_specs) -> kernel call, or None if the backend has none.
        fused: Whether plans may use the kernels of the library of that space.
    """

    name: str
    space: str
    bind: Callable[[Any, Any, tuple[Any, ...], tuple[Any, ...]], Any]
    fused: bool = False


# Name in a context's backend list ("cpu", "cuda", ...) -> backends to ask, best first.
BACKENDS: dict[str, Callable[[str], tuple[Backend, ...]]] = {}

# Type configuration -> (type that is computed in, type of 16 bits that results are stored in).
FLOAT_TYPES: dict[str, tuple[type, str | None]] = {
    "float": (np.float32, None),
    "double": (np.float64, None),
    "half": (np.float32, "float16"),
    "bfloat16": (np.float32, "bfloat16"),
}


def half_type(name: str | None) -> np.dtype[Any] | None:
    """The dtype of a 16-bit storage type; numpy knows bfloat16 through ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return dtype
    return None if name is None else np.dtype(name)


class Target:
    """A context resolved to what dispatch needs; interned, so it serves as a cache key.

    Attributes:
        float_dtype: What is computed in, and what parameters and statistics are stored in.
        half: What other results are stored in, if that is a type of 16 bits; else None.
    """

    __slots__ = ("names", "backends", "float_dtype", "half", "device_id")

    def __init__(
        self, names: tuple[str, ...], backends: tuple[Backend, ...], kind: str, device_id: str
    ) -> None:
        self.names, self.backends, self.device_id = names, backends, device_id
        self.float_dtype = np.dtype(FLOAT_TYPES[kind][0])
        self.half = half_type(FLOAT_TYPES[kind][1])


_TARGETS: dict[tuple[tuple[str, ...], str], Target] = {}


def resolve(backend: Sequence[str], device_id: str) -> Target:
    """The target of names of backends, the same object whenever they are the same."""
    key = (tuple(backend), device_id)
    target = _TARGETS.get(key)
    if target is not None:
        return target
    backends: list[Backend] = []
    kind = ""
    for entry in key[0]:
        name, _, config = entry.partition(":")
        config = config or "float"
        if name not in BACKENDS:
            raise ValueError(f"Context: backend {entry!r} is unknown, known are {sorted(BACKENDS)}")
        if config not in FLOAT_TYPES:
            raise NotImplementedError(
                f"Context: backend {entry!r}: type_config {config!r} is not available here, "
                f"use one of {sorted(FLOAT_TYPES)}"
            )
        kind = kind or config
        backends += [b for b in BACKENDS[name](device_id) if b not in backends]
    if not backends:
        raise ValueError("Context: backend is an empty list, wanted for example ['cpu:float']")
    return _TARGETS.setdefault(key, Target(key[0], tuple(backends), kind, device_id))


class Context:
    """Backends in order of preference, array class and device.

    Args:
        backend: Names like "cpu:float"; the part after the colon is the type configuration:
            "float" computes in float32, "double" in float64; "half" and "bfloat16" compute in
            float32 and store activations and gradients in float16 or bfloat16, parameters,
            statistics and losses in float32. The first entry decides the type.
        array_class: Kept for NNabla's files; not used to choose anything.
        device_id: Which device of the backend.
    Raises:
        ValueError: A backend is unknown. NotImplementedError: its type configuration is.
    Example:
        >>> nn.Context(["cpu:double"])
        Context(backend=['cpu:double'], array_class='', device_id='0')
    """

    __slots__ = ("_backend", "array_class", "_device_id", "_target")

    def __init__(
        self,
        backend: Sequence[str] | str | None = None,
        array_class: str = "",
        device_id: str = "0",
    ) -> None:
        self.array_class = array_class
        self._device_id = str(device_id)
        self._target: Target | None = None
        self.backend = ["cpu:float"] if backend is None else backend

    @property
    def backend(self) -> list[str]:
        """Names of backends in order of preference, with the type after a colon."""
        return list(self._backend)

    @backend.setter
    def backend(self, value: Sequence[str] | str) -> None:
        entries = (value,) if isinstance(value, str) else value
        if not isinstance(entries, (list, tuple)) or not all(isinstance(e, str) for e in entries):
            raise TypeError(
                f"Context: backend is {value!r}, wanted a str or a list of them, as ['cpu:float']"
            )
        entries = tuple(entries)
        target = resolve(entries, self._device_id) if BACKENDS else None
        self._backend, self._target = entries, target

    @property
    def device_id(self) -> str:
        """Number of the device, as a text."""
        return self._device_id

    @device_id.setter
    def device_id(self, value: str) -> None:
        self._device_id, self._target = str(value), None

    @property
    def target(self) -> Target:
        """What the names stand for: backends that are there, device, type."""
        if self._target is None:
            self._target = resolve(self._backend, self._device_id)
        return self._target

    __iter__ = None  # it has names, not positions

    def __getitem__(self, key: str) -> Any:
        if key not in ("backend", "array_class", "device_id"):
            raise KeyError(f"Context has backend, array_class and device_id, not {key!r}")
        return getattr(self, key)

    def __repr__(self) -> str:
        return (
            f"Context(backend={self.backend}, array_class={self.array_class!r}, "
            f"device_id={self.device_id!r})"
        )


_DEFAULTS: dict[str, Any] = dict(
    make_nodes=True, no_grad=False, recompute=False, layer=(), origin=None, profiled=False,
    memory_budget=None,
)  # fmt: skip


class _State(threading.local):
    """The modes of each thread. A thread begins, at its first use of nnl, with the defaults of that
    moment. Its dictionary is its own, so that calls ask for the thread once."""

    context: Context
    target: Target
    interpreter: Interpreter  # what calls mean: compute now, record, or put off
    make_nodes: bool  # False inside backward(): make no nodes
    no_grad: bool
    recompute: bool
    layer: tuple[str, ...]  # parameter scope of the functions that are called, for messages
    origin: Any  # whose gradient is being recorded: where its function was called, or None
    profiled: bool  # time functions that run at once, and note where they are called
    memory_budget: int | None  # bytes that a training plan may take

    def __init__(self) -> None:
        self.__dict__.update(_DEFAULTS)

    @property
    def auto_forward(self) -> bool:
        """Whether functions of Variables compute when they are called."""
        return self.interpreter.computes


STATE = _State()


def set_defaults(**changes: Any) -> None:
    """Set fields of STATE for this thread and for those that have not used nnl yet."""
    _DEFAULTS.update(changes)
    STATE.__dict__.update(changes)


class using:
    """Set fields of STATE, of this thread, for the duration of a with block.

    Args:
        auto_forward: Whether functions compute; the interpreter is switched to that.
    """

    __slots__ = ("_auto", "_changes", "_state", "_old")

    def __init__(self, auto_forward: bool | None = None, **changes: Any) -> None:
        self._auto, self._changes = auto_forward, changes

    def __enter__(self) -> None:  # by hand: @contextmanager takes three times as long
        self._state = state = STATE.__dict__
        if self._auto is not None:
            self._changes["interpreter"] = state["interpreter"].switched(self._auto)
        self._old = {k: state[k] for k in self._changes}
        state.update(self._changes)

    def __exit__(self, *error: Any) -> None:
        self._state.update(self._old)


class _Epoch:
    """Counts the events of the process that can invalidate a plan: rewiring, flags, shapes, dtypes.

    Attributes:
        now: A number that was never there before the latest event.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)  # a sum could lose an event of another thread
        self.now = 0

    def advance(self) -> None:
        self.now = next(self._numbers)


EPOCH = _Epoch()
