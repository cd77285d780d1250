# SPDX-License-Identifier: Apache-2.0
"""Static, dynamic and compiled execution agree on a device, for the first sample of every op."""

import numpy as np
import pytest

import nnl as nn
from tests.cuda.strict_device import context
from tests.test_derived import CASES, check_modes


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("op,i", [p for p in CASES if p.values[1] == 0])
def test_static_compiled_and_dynamic_agree(op, i):
    with nn.context_scope(context()), np.errstate(all="ignore"):
        check_modes(op, i, exact=True)
