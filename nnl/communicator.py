# SPDX-License-Identifier: Apache-2.0
from nnl.communicators import (
    Comm,
    Communicator,
    DataParallelCommunicator,
    Dist,
    MultiProcessCommunicator,
    MultiProcessDataParalellCommunicator,
    MultiProcessDataParallelCommunicator,
)

__all__ = [
    "Comm",
    "Communicator",
    "DataParallelCommunicator",
    "Dist",
    "MultiProcessCommunicator",
    "MultiProcessDataParalellCommunicator",
    "MultiProcessDataParallelCommunicator",
]
