# SPDX-License-Identifier: Apache-2.0
"""Backends by name. Each is imported only when it is asked for."""

from __future__ import annotations

import importlib
from functools import partial
from types import ModuleType
from typing import Any

from nnl.core.settings.context import BACKENDS, Backend, Context

EXTENSIONS = {
    "cpu": "nnl.ext.native",
    "cuda": "nnl.ext.cuda",
    "cudnn": "nnl.ext.cuda",
    "opencl": "nnl.ext.opencl",
    "numpy": "nnl.ext.numpy",
}


def _device_backends(name: str, device_id: str) -> tuple[Backend, ...]:
    module = importlib.import_module(EXTENSIONS[name])
    found: tuple[Backend, ...] = module.backends(name, device_id)
    return found


for _name in ("cuda", "cudnn", "opencl"):
    BACKENDS[_name] = partial(_device_backends, _name)


def list_extensions() -> list[str]:
    """Names with which get_extension_context gives a context on this machine."""
    cuda = importlib.import_module(EXTENSIONS["cuda"])
    gpus = [n for n in ("cuda", "cudnn") if not cuda.missing(n) and cuda.get_device_count()]
    opencl = ["opencl"] * bool(importlib.import_module(EXTENSIONS["opencl"]).get_device_count())
    return sorted(["cpu", "numpy", *gpus, *opencl])


def import_extension_module(ext_name: str) -> ModuleType:
    """The module of a backend.

    Raises:
        ValueError: The name is unknown.
    """
    if ext_name not in EXTENSIONS:
        raise ValueError(
            f"get_extension_context: ext_name is {ext_name!r}, wanted one of {sorted(EXTENSIONS)}"
        )
    return importlib.import_module(EXTENSIONS[ext_name])


def get_extension_context(ext_name: str, **kw: Any) -> Context:
    """A context that computes on the named backend.

    Args:
        ext_name: "cpu" for the native library with numpy for what it lacks, "numpy" for numpy
            alone, "cudnn" for a GPU, "cuda" for a GPU where cuDNN's front end may be missing,
            "opencl" for any vendor's device.
        device_id: Which device, as a str.
        type_config: "float" (float32), "double" (float64), "half" or "bfloat16" (activations and
            gradients stored in 16 bits).
        dtype: Another name for type_config, which old scripts use.
    Raises:
        ValueError: ext_name is unknown.
        NotImplementedError: This machine lacks something; the text says what.
    """
    module = import_extension_module(ext_name)
    if "dtype" in kw:
        dtype = kw.pop("dtype")
        if kw.setdefault("type_config", dtype) != dtype:
            raise ValueError(
                f"get_extension_context: dtype is {dtype!r}, type_config {kw['type_config']!r}: "
                "give one of them"
            )
    if ext_name in ("cuda", "cudnn"):
        kw["ext_name"] = ext_name
    context: Context = module.context(**kw)
    return context


def extension_context(extension_name: str = "cpu", **kw: Any) -> Context:
    """get_extension_context, under the name that old scripts know."""
    return get_extension_context(extension_name, **kw)
