# SPDX-License-Identifier: Apache-2.0
"""What helpers of scripts ask of Variables: links that are cut, iteration, names, contexts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.ext_utils import get_extension_context


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_loss_cuts_the_states_of_a_cell_off(dynamic: bool) -> None:
    with nn.auto_forward(dynamic), nn.parameter_scope(f"cut{dynamic}"):
        cell = PF.LSTMCell(2, 3)
        for _ in range(2):
            y = cell(nn.Variable.from_numpy_array(np.ones((2, 4), np.float32)))
        loss = F.sum(y)
        loss.forward()
        h, c = cell.h.d.copy(), cell.c.d.copy()
        loss.clear_all_graph_links()
        assert (loss.parent, cell.h.parent, cell.c.parent) == (None, None, None)
        np.testing.assert_array_equal(cell.h.d, h)
        np.testing.assert_array_equal(cell.c.d, c)
        y = cell(nn.Variable.from_numpy_array(np.ones((2, 4), np.float32)))
        y.forward()
        assert np.isfinite(y.d).all() and not np.array_equal(y.d, h)


def test_parent_none_cuts_one_variable_alone() -> None:
    x = nn.Variable((2,), need_grad=True)
    h = F.sin(x)
    y = F.exp(h)
    y.parent = None
    assert y.parent is None and h.parent is not None


def test_iteration_goes_by_positions() -> None:
    for x in (nn.Variable((2, 3)), nn.NdArray((2, 3))):
        assert not isinstance(x, Iterable)
        assert [row.shape for row in x] == [(3,), (3,)]


def test_a_parameter_is_named_by_the_last_part() -> None:
    for _ in range(2):  # when it is made, and when it is found
        assert PF.get_parameter_or_create("aaa/bbb/ccc", (2,)).name == "ccc"


def test_dtype_is_the_old_name_of_type_config() -> None:
    assert get_extension_context("cpu", dtype="float").backend == ["cpu:float"]
    with pytest.raises(ValueError, match="dtype is 'float', type_config 'half': give one of them"):
        get_extension_context("cpu", dtype="float", type_config="half")
