# SPDX-License-Identifier: Apache-2.0
"""Communicators: training in several processes, and NNabla's names for it."""

from nnl.communicators.base import Communicator
from nnl.communicators.callback import CommunicatorBackwardCallback
from nnl.communicators.channel import CommunicatorError
from nnl.communicators.local import DataParallelCommunicator
from nnl.communicators.multi_process import (
    MultiProcessDataParallelCommunicator,
    create_communicator,
    current_communicator,
    single_or_rankzero,
)
from nnl.communicators.parallel.checkpoints import Checkpoints
from nnl.communicators.parallel.experts import mixture_of_experts
from nnl.communicators.parallel.layers import (
    affine,
    convolution,
    dropout,
    embed,
    layer_normalization,
    softmax_cross_entropy,
)
from nnl.communicators.parallel.mesh import Axis, Mesh
from nnl.communicators.parallel.pipeline import Pipeline, balanced
from nnl.communicators.parallel.sharding import shard
from nnl.core.settings.context import Context

# NNabla has these names too, one of them misspelt.
MultiProcessCommunicator = MultiProcessDataParallelCommunicator
MultiProcessDataParalellCommunicator = MultiProcessDataParallelCommunicator
Dist = MultiProcessDataParallelCommunicator
Comm = DataParallelCommunicator

__all__ = [
    "Axis",
    "Checkpoints",
    "Comm",
    "Communicator",
    "CommunicatorBackwardCallback",
    "CommunicatorError",
    "Context",
    "DataParallelCommunicator",
    "Dist",
    "Mesh",
    "MultiProcessCommunicator",
    "MultiProcessDataParalellCommunicator",
    "MultiProcessDataParallelCommunicator",
    "Pipeline",
    "affine",
    "balanced",
    "convolution",
    "create_communicator",
    "current_communicator",
    "dropout",
    "embed",
    "layer_normalization",
    "mixture_of_experts",
    "shard",
    "single_or_rankzero",
    "softmax_cross_entropy",
]
