# SPDX-License-Identifier: Apache-2.0
"""The graph: nodes, Variables, the way back along them, and what binds a function to a kernel."""
