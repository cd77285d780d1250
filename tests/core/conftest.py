# SPDX-License-Identifier: Apache-2.0
"""Every test must leave the modes at their defaults."""

import numpy as np
import pytest

import nnl as nn
from nnl.core.interpreters.interpreter import STATIC
from nnl.core.settings.context import STATE


def leaf(values, need_grad=True):
    """A float32 leaf with a zero gradient."""
    v = nn.Variable.from_numpy_array(np.asarray(values, np.float32), need_grad=need_grad)
    v.grad.zero()
    return v


@pytest.fixture(autouse=True)
def _clean():
    yield
    assert STATE.interpreter is STATIC and STATE.make_nodes
    assert not (STATE.no_grad or STATE.recompute)
