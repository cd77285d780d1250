# SPDX-License-Identifier: Apache-2.0
"""The native backend: kernels of the C++ library, over the same host memory as numpy's.

The extension module `_native` is built by CMake from cpp/. Where it is missing, was built for
another processor, or NNL_NATIVE=OFF is set, this backend has no kernels and numpy does the work.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

from nnl.core.context import Backend

logger = logging.getLogger("nnl")

# The numbers of the C++ enumeration nnl::DType. By name: bfloat16 comes from ml_dtypes, which is
# imported only where it is used.
_DTYPES = {
    name: i
    for i, name in enumerate(
        ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "uint16", "int32",
         "uint32", "int64", "uint64", "bool"]
    )
}  # fmt: skip

# Below this, numpy is as fast: the call costs more than the work.
SMALL = 4096  # elements of the largest array


def _let_idle_threads_sleep() -> None:
    """Ask GNU OpenMP to spin for microseconds only, before it is loaded.

    Its default spins for milliseconds between two parallel regions: with another process on the
    cores, a step takes 5 to 14 times longer.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


@cache
def library() -> ModuleType | None:
    """The extension module, or None; the reason is logged once."""
    if os.environ.get("NNL_NATIVE", "ON").upper() in ("OFF", "0", "FALSE"):
        logger.info("NNL_NATIVE is off: the numpy backend does all the work")
        return None
    _let_idle_threads_sleep()
    try:
        from nnl.ext.native import _native
    except ImportError as e:
        logger.info("The native engine is not there (%s): numpy does the work, slower", e)
        return None
    missing: str = _native.missing_instructions()
    if missing:
        logger.warning(
            "The native engine was built for a processor with %s, which this one lacks: numpy does "
            "the work, slower. Build nnl again on this machine.",
            missing,
        )
        return None
    return _native  # type: ignore[no-any-return]


@cache
def kernel_names() -> frozenset[str]:
    """Ops that have a native kernel for some dtypes and shapes."""
    lib = library()
    return frozenset(lib.kernel_names()) if lib is not None else frozenset()


def native_spec(spec: Any, channels_last: bool = False) -> tuple[Any, int, bool] | None:
    """A spec as the library takes it; None for an absent input."""
    return None if spec is None else (spec.shape, _DTYPES[spec.dtype.name], channels_last)


def native_attributes(attrs: Any) -> dict[str, Any]:
    """Attribute values by name, as far as C++ can hold them."""
    return {k: v for k, v in attrs.as_dict().items() if is_plain(v)}


def is_plain(value: Any) -> bool:
    """Whether a value is a number, a text, None, or a sequence of numbers."""
    if isinstance(value, tuple):
        return all(isinstance(v, (int, float)) for v in value)
    return value is None or isinstance(value, (bool, int, float, str))


def bind(
    op: Any, attrs: Any, in_specs: tuple[Any, ...], out_specs: tuple[Any, ...]
) -> tuple[Callable[..., Any], bool] | None:
    """(call, takes out=) for numpy arrays, if the library has a kernel and the arrays are not tiny.

    A call is one crossing into C++; plans do not come here but take kernels whole.
    """
    if op.name not in kernel_names():
        return None
    specs = [*in_specs, *out_specs]
    if any(s is not None and s.dtype.name not in _DTYPES for s in specs):
        return None
    if max((s.size for s in specs if s is not None), default=0) < SMALL:
        return None
    lib = library()
    assert lib is not None
    kernel = lib.array_kernel(
        op.name,
        native_attributes(attrs),
        [native_spec(s) for s in in_specs],
        [native_spec(s) for s in out_specs],
        [s.dtype for s in out_specs],
    )
    return None if kernel is None else (kernel, len(out_specs) == 1)


NATIVE = Backend("native", "host", bind)
