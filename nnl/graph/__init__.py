# SPDX-License-Identifier: Apache-2.0
"""Static graphs: plans, memory, sessions and nnl.compile."""

from nnl import solvers as _solvers  # noqa: F401  (their rules are steps of programs)
from nnl.core.ops.schema import schema  # of all ops, those of programs too
from nnl.graph.control_flow.scan import scan
from nnl.graph.control_flow.switch import switch
from nnl.graph.control_flow.while_loop import while_loop
from nnl.graph.execution import executor  # noqa: F401  (what Variable.forward() calls)
from nnl.graph.open_sizes.at_most import at_most
from nnl.graph.plan.recompute import memory_budget
from nnl.graph.printing.profile import profile
from nnl.graph.printing.text import describe, print_graph
from nnl.graph.recording.compile import compile
from nnl.graph.saving.files import load_program
from nnl.graph.saving.saving import save_program

__all__ = [
    "at_most", "compile", "describe", "load_program", "memory_budget", "print_graph", "profile",
    "save_program", "scan", "schema", "switch", "while_loop",
]  # fmt: skip
