# SPDX-License-Identifier: Apache-2.0
from functools import partial

from numpy.testing import assert_allclose as _assert_allclose

assert_allclose = partial(_assert_allclose, rtol=1e-5, atol=1e-6)  # numpy.allclose's tolerances

__all__ = ["assert_allclose"]
