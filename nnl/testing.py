# SPDX-License-Identifier: Apache-2.0
from nnl.nnabla.testing import assert_allclose

__all__ = ["assert_allclose"]
