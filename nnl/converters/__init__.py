# SPDX-License-Identifier: Apache-2.0
"""Readers and writers of files. Importing this gives the solvers their state files, and functions
of nnl.compile their networks'."""

from typing import Any

from nnl.converters.nnp import solver_files as _solver_files  # noqa: F401
from nnl.graph.recording.compile import NETWORK_FILES


def _save_network(*args: Any) -> None:
    from nnl.converters.recorded import save_network

    save_network(*args)


NETWORK_FILES["save"] = _save_network
