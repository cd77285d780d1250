# SPDX-License-Identifier: Apache-2.0
"""What a kernel throws in one of several threads is an error, not the end of the process."""

import numpy as np
import pytest

import nnl as nn
from nnl.core.ops.op import OPS
from tests.native.kernels import F32, require_library


@pytest.mark.parametrize("bad", ([0], [3], [0, 3]))
def test_a_bad_index_in_some_of_four_threads_is_named(bad):
    lib = require_library()
    index = np.zeros((4, 2, 300), np.int64)
    for part in bad:
        index[part, 1, 5] = 900 + part
    arrays = np.ones((4, 600, 700), F32), np.ones((4, 600, 300), F32), index
    xs = [nn.Variable.from_numpy_array(a) for a in arrays]
    message = f"pixel_products: index has the value {900 + bad[0]}"
    before = lib.threads()
    lib.set_threads(4)
    try:
        for _ in range(5):
            with nn.auto_forward(), pytest.raises(ValueError, match=message):
                OPS["pixel_products"](*xs)
    finally:
        lib.set_threads(before)
