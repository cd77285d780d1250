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


def test_torch_and_numpy_take_an_array_itself():
    torch = pytest.importorskip("torch")
    a = nn.NdArray.from_numpy_array(np.arange(3, dtype=np.float32))
    assert a.__dlpack_device__() == (1, 0)
    t, n = torch.from_dlpack(a), np.from_dlpack(a)
    t[0] = 7
    assert a.data.tolist() == [7, 1, 2] and n.tolist() == [7, 1, 2]


def test_memory_of_torch_can_be_written():
    torch = pytest.importorskip("torch")
    for take in (lambda t: t, torch.utils.dlpack.to_dlpack):
        t = torch.arange(4.0)
        a = from_dlpack(take(t))
        a.data[1] = 5
        a.data = a.data * 2
        assert t.tolist() == [0, 10, 4, 6]
        del t
        assert a.data.tolist() == [0, 10, 4, 6]


def test_memory_that_must_not_be_written_is_copied_first():
    n = np.arange(3.0)
    n.flags.writeable = False
    a = from_dlpack(n)
    a.data = 5
    assert n.tolist() == [0, 1, 2] and a.data.tolist() == [5, 5, 5]
