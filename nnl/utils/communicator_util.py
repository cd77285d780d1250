# SPDX-License-Identifier: Apache-2.0
from nnl.communicators import create_communicator, current_communicator, single_or_rankzero

__all__ = ["create_communicator", "current_communicator", "single_or_rankzero"]
