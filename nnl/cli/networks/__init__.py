# SPDX-License-Identifier: Apache-2.0
"""Commands that convert, look into and change networks."""

from nnl.dialects import formats as _formats  # noqa: F401  (they note themselves)
