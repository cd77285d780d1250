# SPDX-License-Identifier: Apache-2.0
"""Scripts as NNabla's example programs are written give the same curves after renaming."""

import pytest

from tests.interop.here import check_script
from tests.interop.idioms import SCRIPTS, TOOLS

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_gives_nnabla_s_numbers(nnabla, name):
    # rounding differs from the first step on, and training amplifies it
    check_script(nnabla, TOOLS + SCRIPTS[name], rtol=2e-3)
