# SPDX-License-Identifier: Apache-2.0
"""The engine: specs, arrays, ops, dispatch, the graph, differentiation and the parameter registry."""

from nnl.core import dispatch, operators, python_function  # noqa: F401  (they register themselves)
