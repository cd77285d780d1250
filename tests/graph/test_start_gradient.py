# SPDX-License-Identifier: Apache-2.0
"""backward() reads the array that it is given where that is, and never writes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F


@pytest.fixture(params=[False, True])
def network(request: Any) -> tuple[nn.Variable, nn.Variable, bool]:
    x = nn.Variable.from_numpy_array(np.array([1.0, -2.0, 3.0], np.float32), need_grad=True)
    return x, F.relu(x) * 2, request.param


def run(x: nn.Variable, y: nn.Variable, joint: bool, grad: Any) -> Any:
    x.grad.zero()
    y.forward(clear_no_need_grad=joint)
    y.backward(grad, clear_buffer=joint)
    return x.g.copy()


def test_a_given_array_is_read_and_stays_as_it_is(network: Any) -> None:
    x, y, joint = network
    given = nn.NdArray.from_numpy_array(np.array([1.0, 2.0, 3.0], np.float32))
    assert run(x, y, joint, given).tolist() == [2, 0, 6]
    given.data[...] = [5, 5, 5]
    assert run(x, y, joint, given).tolist() == [10, 0, 10]
    assert run(x, y, joint, 1).tolist() == [2, 0, 2]  # in memory of its own again
    assert run(x, y, joint, 3.0).tolist() == [6, 0, 6]
    assert given.data.tolist() == [5, 5, 5]
    assert run(x, y, joint, np.array([1, 1, 4])).tolist() == [2, 0, 8]


def test_the_gradient_of_the_run_before_may_be_given(network: Any) -> None:
    """Its memory is where the plan writes the next one."""
    x, y, joint = network
    run(x, y, joint, 1)
    for _ in range(3):
        before = x.g.copy()
        y.forward(clear_no_need_grad=joint)
        y.backward(x.grad, clear_buffer=joint)
        np.testing.assert_array_equal(x.g, before + 2 * before * (x.d > 0))


def test_an_identity_gives_a_gradient_of_its_own() -> None:
    x = nn.Variable.from_numpy_array(np.ones(3, np.float32), need_grad=True)
    given = nn.NdArray.from_numpy_array(np.array([1.0, 2.0, 3.0], np.float32))
    y = F.identity(x)
    for joint in (False, True):
        run(x, y, joint, given)
        x.grad.data[...] = 7
        assert given.data.tolist() == [1, 2, 3]
