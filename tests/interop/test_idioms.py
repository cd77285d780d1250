# SPDX-License-Identifier: Apache-2.0
"""Scripts as NNabla's example programs are written give the same curves after renaming."""

import numpy as np
import pytest

from tests.interop.idioms import SCRIPTS, TOOLS
from tests.interop.test_scripts_of_layers import both

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_gives_nnabla_s_numbers(nnabla, name):
    want, got = both(nnabla, TOOLS + SCRIPTS[name])
    assert want and list(want) == list(got)
    for k in want:
        if want[k].dtype.kind in "iU":
            np.testing.assert_array_equal(got[k], want[k], err_msg=k)
        else:  # rounding differs from the first step on, and training amplifies it
            np.testing.assert_allclose(got[k], want[k], rtol=2e-3, atol=1e-5, err_msg=k)
