# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

import nnl as nn
from nnl.utils.dlpack import from_dlpack, to_dlpack


def test_memory_is_shared_both_ways():
    a = nn.NdArray.from_numpy_array(np.arange(6, dtype=np.float32).reshape(2, 3))
    b = from_dlpack(to_dlpack(a))
    a.data[0, 0] = 7
    assert b.shape == (2, 3) and b.data[0, 0] == 7 and b.dtype == np.float32


def test_an_existing_array_takes_over_the_memory():
    a = nn.NdArray.from_numpy_array(np.arange(3, dtype=np.int32))
    b = nn.NdArray(5)
    assert from_dlpack(to_dlpack(a), arr=b) is b
    assert b.shape == (3,) and b.data.tolist() == [0, 1, 2]


def test_a_dtype_is_converted_to_first():
    a = nn.NdArray.from_numpy_array(np.arange(3, dtype=np.int32))
    assert from_dlpack(to_dlpack(a, np.float64)).dtype == np.float64


def test_torch_shares_memory():
    torch = pytest.importorskip("torch")
    t = torch.arange(4.0)
    a = from_dlpack(torch.utils.dlpack.to_dlpack(t))
    t[0] = 9
    assert a.read("host").tolist() == [9, 1, 2, 3]
    back = torch.utils.dlpack.from_dlpack(to_dlpack(nn.NdArray.from_numpy_array(np.ones(2))))
    assert back.tolist() == [1, 1]
