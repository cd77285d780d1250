# SPDX-License-Identifier: Apache-2.0
"""The native backend: kernels of the C++ library, over the same host memory as numpy's.

The extension module `_native` is built by CMake from cpp/. Where it is missing, does not load, was
built for another processor, or NNL_NATIVE=OFF is set, this backend has no kernels and numpy does
the work.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from types import ModuleType
from typing import Any

import numpy as np

from nnl.core.arguments.annotations import CHECKS
from nnl.core.arguments.origin import LOCATION, PASSED
from nnl.core.arrays.bulk import BULK
from nnl.core.interpreters import interpreter
from nnl.core.ops import op as ops
from nnl.core.parameters.parameter import LOOKUP
from nnl.core.settings.context import BACKENDS, SPACES, Backend, Context, HostSpace
from nnl.ext.host_device import *  # noqa: F403  # what scripts ask of a device
from nnl.ext.library import (
    DTYPES,
    Abilities,
    Call,
    Traits,
    into,
    is_list,
    knows,
    native_spec,
    request,
)
from nnl.ext.native import spaces as spaces
from nnl.ext.native.loading import NotBuilt, load
from nnl.ext.numpy import NUMPY
from nnl.ext.numpy import bind as bind_numpy

logger = logging.getLogger("nnl")

TRAITS = Traits(
    places=("native", "numpy"),
    # Below it, products of whole matrices with softmax between them are faster: 1.1 to 1.5 times
    # for float32 and 1.3 to 1.7 times for bfloat16, which the fused steps compute with as float32,
    # at 128 to 1024 positions. Above it, memory runs out before time does: every layer of a
    # training step keeps its weights.
    least_attention_bytes=1 << 28,
    # ResNet-50 at batch 8 then needs a quarter less memory.
    computes_again=True,
)

LARGE = 1 << 14  # bytes from which the start of an array in memory matters


@contextmanager
def _short_spinning() -> Iterator[None]:
    """Ask GNU OpenMP to spin for microseconds only, while it is loaded.

    Its default spins for milliseconds between two parallel regions: with another process on the
    cores, a step takes 5 to 14 times longer. And it hardly spins at all where two threads have
    helpers, as when a step runs ahead, unless the policy is "active": then a step with many small
    kernels takes 1.3 times longer. Other OpenMP libraries understand that policy otherwise, so it
    is taken back.
    """
    if "OMP_WAIT_POLICY" in os.environ:
        yield
        return
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    os.environ["OMP_WAIT_POLICY"] = "active"
    try:
        yield
    finally:
        del os.environ["OMP_WAIT_POLICY"]


@cache
def library() -> ModuleType | None:
    """The extension module, or None; the reason is logged once.

    Raises:
        RuntimeError: It was built from other sources than these.
    """
    if os.environ.get("NNL_NATIVE", "ON").upper() in ("OFF", "0", "FALSE"):
        logger.info("NNL_NATIVE is off: the numpy backend does all the work")
        return None
    try:
        with _short_spinning():
            lib = load()
        lib.traits, lib.abilities = TRAITS, cache(partial(_abilities, lib))
        ops.call_by(lib.op_call(ops, interpreter))
        LOCATION.asked_of(lib.location_by(PASSED))
        BULK.asked_of(lib)
        LOOKUP.asked_of(lib)
        CHECKS.asked_of(lib.usual)
        return lib
    except ImportError as e:
        logger.log(
            logging.INFO if isinstance(e, NotBuilt) else logging.WARNING,
            "The native engine is not used (%s): numpy does the work, slower",
            e,
        )
        return None
    except AttributeError as e:  # else readers of files take it for damage in the file
        raise RuntimeError(
            f"the native engine was built from other sources than this nnl ({e}): build it again "
            "(make setup in a checkout)"
        ) from e


def _abilities(lib: ModuleType, op: str) -> Abilities:
    said = lib.abilities_of(op)
    return Abilities(**{k: tuple(v) if isinstance(v, list) else v for k, v in said.items()})


def empty(shape: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """np.empty, with large arrays at the start of a cache line, which vector loads want."""
    dtype = np.dtype(dtype)
    if dtype.itemsize * math.prod(shape) < LARGE:
        return np.empty(shape, dtype)
    lib = library()
    return np.empty(shape, dtype) if lib is None else lib.empty(shape, dtype)


class NativeHost(HostSpace):
    """Host memory with the library's allocator and kernels, where it is there."""

    def empty(self, shape: Any, dtype: Any) -> np.ndarray[Any, Any]:
        return empty(shape, dtype)

    def library(self) -> Any:
        return library()


SPACES["host"] = NativeHost()


def set_threads(n: int) -> None:
    """Let the native engine compute on n threads from now on, whichever Python thread calls it.

    Plans that exist already use at most as many as there were when they were made. The initial
    number is OpenMP's: OMP_NUM_THREADS, or the processors this process may use.

    Raises:
        ValueError: n is less than 1.
    Example:
        >>> nn.set_threads(1)
    """
    if n < 1:
        raise ValueError(f"set_threads: n is {n}, wanted 1 or more")
    lib = library()
    if lib is not None:
        lib.set_threads(int(n))


def bind(
    op: Any, attrs: Any, in_specs: tuple[Any, ...], out_specs: tuple[Any, ...]
) -> tuple[Call, bool] | None:
    """(call, True) for numpy arrays, if the library may have a kernel.

    If the kernel declines, numpy's own call stands in.
    """
    lib = library()
    if lib is None or not knows(lib, op.name) or op.view:  # kernels copy, numpy gives a view
        return None
    specs = [s for s in (*in_specs, *out_specs) if s is not None]
    if any(s.type_name not in DTYPES for s in specs):
        return None
    call = lib.at_first_call(partial(_array_kernel, op, attrs, in_specs, out_specs))
    return call, len(out_specs) == 1 and not is_list(op, attrs, in_specs)


def _array_kernel(
    op: Any, attrs: Any, in_specs: tuple[Any, ...], out_specs: tuple[Any, ...]
) -> Call:
    lib = library()
    assert lib is not None
    ins, outs = [native_spec(s) for s in in_specs], [native_spec(s) for s in out_specs]
    asked = request(lib, op.name, attrs.as_dict(), ins, outs)
    kernel: Call | None = asked and lib.array_kernel(
        *asked, ins, outs, [s.dtype for s in out_specs], list(op.written(attrs))
    )
    listed = len(out_specs) == 1 and is_list(op, attrs, in_specs)
    if kernel is not None:
        return partial(_tuple_of, kernel) if listed else kernel
    made = bind_numpy(op, attrs, in_specs, out_specs)
    assert made is not None
    return made[0] if made[1] or listed or len(out_specs) > 1 else partial(into, made[0])


def _tuple_of(call: Call, *bufs: Any) -> tuple[Any]:
    return (call(*bufs),)


NATIVE = Backend("native", "host", bind, fused=True)
BACKENDS["cpu"] = lambda device_id: (NATIVE, NUMPY)


def context(device_id: str = "", type_config: str = "float") -> Context:
    """Native kernels, and numpy for what has none.

    Args:
        type_config: "float" (float32), "double" (float64, which numpy computes), "half" or
            "bfloat16" (activations and gradients stored in 16 bits).
    """
    return Context([f"cpu:{type_config}"], array_class="CpuCachedArray", device_id=device_id)
