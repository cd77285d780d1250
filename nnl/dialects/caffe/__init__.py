# SPDX-License-Identifier: Apache-2.0
"""Caffe's names: networks from prototxt files, their blobs and weights, and solvers."""

from nnl.core.ops.random import seed as set_random_seed
from nnl.dialects.caffe.layer import KINDS as _KINDS
from nnl.dialects.caffe.layer import Blob, Parameter
from nnl.dialects.caffe.layers.data import files as _databases
from nnl.dialects.caffe.net import TEST, TRAIN, Net
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


def layer_type_list() -> list[str]:
    """The types of layers that networks may have."""
    return sorted(t for t, kind in _KINDS.items() if kind.build is not _databases)


def set_mode_cpu() -> None:
    """Nothing: networks run in the current context, see `nnl.set_default_context`."""


__all__ = [
    "TEST",
    "TRAIN",
    "AdaDeltaSolver",
    "AdaGradSolver",
    "AdamSolver",
    "Blob",
    "Layer",
    "NesterovSolver",
    "Net",
    "Parameter",
    "RMSPropSolver",
    "SGDSolver",
    "Solver",
    "get_solver",
    "layer_type_list",
    "set_mode_cpu",
    "set_random_seed",
]
