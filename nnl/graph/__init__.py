# SPDX-License-Identifier: Apache-2.0
"""Static graphs: plans, memory, sessions and nnl.compile."""

from nnl.graph import session as _session  # noqa: F401  (registers the executor)
from nnl.graph.compile import compile
from nnl.graph.printing import describe, print_graph
from nnl.graph.profile import profile

__all__ = ["compile", "describe", "print_graph", "profile"]
