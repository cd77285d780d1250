# SPDX-License-Identifier: Apache-2.0
"""Level 2: training in several processes, over the communicators of nnl."""

from nnl.deep500.distributed.communication import Communication
from nnl.deep500.distributed.fork import mpi_fork
from nnl.deep500.distributed.native import (
    NativeConsistentDecentralized,
    NativeConsistentNeighbors,
    NativeConsistentParameterServer,
)
from nnl.deep500.distributed.schemes import (
    ConsistentDecentralized,
    ConsistentNeighbors,
    ConsistentParameterServer,
    DistributedOptimizer,
    InconsistentParameterServer,
)

__all__ = [
    "Communication",
    "ConsistentDecentralized",
    "ConsistentNeighbors",
    "ConsistentParameterServer",
    "DistributedOptimizer",
    "InconsistentParameterServer",
    "NativeConsistentDecentralized",
    "NativeConsistentNeighbors",
    "NativeConsistentParameterServer",
    "mpi_fork",
]
