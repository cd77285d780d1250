# SPDX-License-Identifier: Apache-2.0
"""The engine, in folders of which each uses those before it and none after it: `arguments` and
`settings`, `arrays`, `graph`, `ops`, `differentiation` and `interpreters`, `parameters`."""

from nnl.core.arrays import nnabla_views  # noqa: F401  (they register themselves)
from nnl.core.interpreters import interpreter  # noqa: F401  (they register themselves)
from nnl.core.ops import indexing, python_function  # noqa: F401  (they register themselves)
