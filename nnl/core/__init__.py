# SPDX-License-Identifier: Apache-2.0
"""The engine: specs, arrays, ops, dispatch, the graph, differentiation, the parameter registry."""

from nnl.core import (  # noqa: F401  (they register themselves)
    array_views,
    dispatch,
    indexing,
    interpreter,
    operators,
    python_function,
)
