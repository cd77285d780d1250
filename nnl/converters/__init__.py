# SPDX-License-Identifier: Apache-2.0
"""Readers and writers of files. Importing this gives the solvers their state files, and functions
of nnl.compile their networks'; the rest is imported when it is first used."""

from typing import Any

from nnl.core.parameters.parameter import FILES


def _solver_states() -> Any:
    from nnl.converters.nnp.solver_files import STATE_FILES

    return STATE_FILES


def _save_network(*args: Any) -> None:
    from nnl.converters.recorded import save_network

    save_network(*args)


FILES.update(solver_states=_solver_states, save_network=_save_network)
