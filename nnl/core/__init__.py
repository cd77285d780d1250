# SPDX-License-Identifier: Apache-2.0
"""The engine: specs, arrays, ops, dispatch, the graph, differentiation, the parameter registry."""

from nnl.core.arrays import (
    indexing,  # noqa: F401  (they register themselves)
    nnabla_views,  # noqa: F401  (they register themselves)
)
from nnl.core.graph import operators  # noqa: F401  (they register themselves)
from nnl.core.interpreters import (
    dispatch,  # noqa: F401  (they register themselves)
    interpreter,  # noqa: F401  (they register themselves)
)
from nnl.core.ops import python_function  # noqa: F401  (they register themselves)
