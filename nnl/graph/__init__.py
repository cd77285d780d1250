# SPDX-License-Identifier: Apache-2.0
"""Static graphs: plans, memory, sessions and nnl.compile."""

from nnl.graph import executor  # noqa: F401  (what Variable.forward() calls)
from nnl.graph.at_most import at_most
from nnl.graph.compile import compile
from nnl.graph.printing import describe, print_graph
from nnl.graph.profile import profile
from nnl.graph.programs import load_program
from nnl.graph.recompute import memory_budget
from nnl.graph.saving import save_program
from nnl.graph.scan import scan
from nnl.graph.switch import switch
from nnl.graph.while_loop import while_loop

__all__ = [
    "at_most", "compile", "describe", "load_program", "memory_budget", "print_graph", "profile",
    "save_program", "scan", "switch", "while_loop",
]  # fmt: skip
