# SPDX-License-Identifier: Apache-2.0
"""Static graphs: plans, memory, sessions and nnl.compile."""

from nnl.graph import session as _session  # noqa: F401  (registers the executor)
from nnl.graph.compile import compile
from nnl.graph.printing import describe, print_graph
from nnl.graph.profile import profile
from nnl.graph.recompute import memory_budget

__all__ = ["compile", "describe", "memory_budget", "print_graph", "profile"]
