# SPDX-License-Identifier: Apache-2.0
"""Backends by name. Each is imported only when it is asked for."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from nnl.core.context import Context

EXTENSIONS = {"cpu": "nnl.ext.native", "numpy": "nnl.ext.numpy"}

# Names that scripts use for backends this release does not have, and what they would need.
_MISSING = {
    "cuda": "the CUDA backend is not part of this release",
    "cudnn": "the CUDA backend is not part of this release",
}


def list_extensions() -> list[str]:
    """Names that get_extension_context accepts."""
    return sorted(EXTENSIONS)


def import_extension_module(ext_name: str) -> ModuleType:
    """The module of a backend.

    Raises:
        NotImplementedError: The name is known but the backend is not there. ValueError: unknown.
    """
    if ext_name in _MISSING:
        raise NotImplementedError(
            f"get_extension_context: {ext_name!r}: {_MISSING[ext_name]}; "
            f"use one of {list_extensions()}"
        )
    if ext_name not in EXTENSIONS:
        raise ValueError(
            f"get_extension_context: ext_name is {ext_name!r}, wanted one of {list_extensions()}"
        )
    return importlib.import_module(EXTENSIONS[ext_name])


def get_extension_context(ext_name: str, **kw: Any) -> Context:
    """A context that computes on the named backend.

    Args:
        ext_name: "cpu" for the native library with numpy for what it lacks, "numpy" for numpy
            alone.
        device_id: Which device, as a str.
        type_config: "float" (float32), "double" (float64), "half" or "bfloat16" (activations and
            gradients stored in 16 bits).
    """
    context: Context = import_extension_module(ext_name).context(**kw)
    return context
