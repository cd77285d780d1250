# SPDX-License-Identifier: Apache-2.0
"""Caffe's names: networks from prototxt files, their blobs and weights, and solvers."""

from typing import Any as _Any

from nnl.core.interpreters.switches import get_current_context as _current
from nnl.core.interpreters.switches import set_default_context as _use
from nnl.core.ops.random import seed as set_random_seed
from nnl.dialects.caffe import io, proto
from nnl.dialects.caffe.classifier import Classifier
from nnl.dialects.caffe.layer import KINDS as _KINDS
from nnl.dialects.caffe.layer import Blob, Parameter
from nnl.dialects.caffe.layer_types.data import files as _databases
from nnl.dialects.caffe.net import TEST, TRAIN, Net
from nnl.dialects.caffe.net_spec import NetSpec, layers, params, to_proto
from nnl.dialects.caffe.python_layer import Layer
from nnl.dialects.caffe.solver import (
    AdaDeltaSolver,
    AdaGradSolver,
    AdamSolver,
    NesterovSolver,
    RMSPropSolver,
    SGDSolver,
    Solver,
    get_solver,
)
from nnl.ext import get_extension_context as _extension

_before_gpu: list[_Any] = []  # the context that set_mode_cpu goes back to
_device = ["0"]


def layer_type_list() -> list[str]:
    """The types of layers that networks may have."""
    return sorted(t for t, kind in _KINDS.items() if kind.build is not _databases)


def set_mode_gpu() -> None:
    """Make a GPU the default context, see `nnl.set_default_context`.

    Raises:
        NotImplementedError: There is none, or what it needs is not installed.
    """
    context = _extension("cudnn", device_id=_device[0])
    _before_gpu[:] = _before_gpu or [_current()]
    _use(context)


def set_mode_cpu() -> None:
    """Go back to the context from before set_mode_gpu; without that nothing changes."""
    if _before_gpu:
        _use(_before_gpu.pop())


def set_device(device_id: int) -> None:
    """The number of the GPU that set_mode_gpu uses."""
    _device[0] = str(device_id)
    if _before_gpu:
        set_mode_gpu()


__all__ = [
    "TEST",
    "TRAIN",
    "AdaDeltaSolver",
    "AdaGradSolver",
    "AdamSolver",
    "Blob",
    "Classifier",
    "Layer",
    "NesterovSolver",
    "Net",
    "NetSpec",
    "Parameter",
    "RMSPropSolver",
    "SGDSolver",
    "Solver",
    "get_solver",
    "io",
    "layer_type_list",
    "layers",
    "params",
    "proto",
    "set_device",
    "set_mode_cpu",
    "set_mode_gpu",
    "set_random_seed",
    "to_proto",
]
