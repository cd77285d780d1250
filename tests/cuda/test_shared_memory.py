# SPDX-License-Identifier: Apache-2.0
"""Parts of one memory are on the host: what a device writes reaches them, or it is refused."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from tests.core.conftest import leaf
from tests.cuda.strict_device import context


@pytest.mark.parametrize("dynamic", [False, True])
def test_parts_see_what_a_device_writes_and_it_what_they_write(dynamic):
    b, x, v = nn.NdArray((4,)), leaf([1, 2]), leaf([0, 0])
    b.fill(5)
    v.data = b.narrow(0, 0, 2)
    with nn.context_scope(context()), nn.auto_forward(dynamic):
        F.identity(x, outputs=[v.data]).forward()
        assert b.data.tolist() == [1, 2, 5, 5]
        y = v * 2
        y.forward()
        b.fill(8)
        y = v * 2 if dynamic else y
        y.forward()
        assert y.d.tolist() == [16, 16]


def test_what_had_parts_once_is_memory_like_any_other():
    b = nn.NdArray((2,))
    b.narrow(0, 0, 1).fill(5)
    with nn.context_scope(context()), nn.auto_forward():
        F.mul_scalar(leaf([1, 2]), 3, outputs=[b])
    assert b.cast(np.int32).tolist() == [3, 6] and b.dtype == np.int32


def test_a_part_is_not_changed_in_place_on_a_device():
    b, w = nn.NdArray((4,)), leaf([1, 2], need_grad=True)
    b.fill(5)
    w.data = b.narrow(0, 0, 2)
    solver = S.Sgd(1)
    solver.set_parameters({"w": w})
    text = r"^float32\[2\] is to be changed in place on strict:0, and shares its memory with other "
    with nn.context_scope(context()):
        F.sum(w).forward()
        w.g = np.ones(2)
        with pytest.raises(NotImplementedError, match=text):
            solver.update()
        del b
        solver.update()
    assert w.d.tolist() == [4, 4]
