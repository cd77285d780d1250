# SPDX-License-Identifier: Apache-2.0
"""The graph: nodes, Variables, differentiation."""
