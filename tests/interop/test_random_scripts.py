# SPDX-License-Identifier: Apache-2.0
"""Random scripts give NNabla's numbers, static and define-by-run.

NNL_RANDOM_SCRIPTS is how many (60); NNL_RANDOM_SCRIPTS_FROM the first seed (0).
"""

import os

import numpy as np
import pytest

from tests.interop.random_scripts import script
from tests.interop.test_scripts_of_layers import both

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("dynamic", [False, True])
def test_random_scripts_give_nnabla_s_numbers(nnabla, dynamic):
    first = int(os.environ.get("NNL_RANDOM_SCRIPTS_FROM", "0"))
    wrong = []
    for seed in range(first, first + int(os.environ.get("NNL_RANDOM_SCRIPTS", "60"))):
        text = script(seed, dynamic)
        try:
            want, got = both(nnabla, text)
            assert want and list(want) == list(got)
            for k in want:
                np.testing.assert_allclose(got[k], want[k], rtol=1e-4, atol=1e-5, err_msg=k)
        except Exception as e:  # noqa: BLE001  (each script that differs is named below)
            wrong.append(f"seed {seed}: {type(e).__name__}: {e}\n{text}")
    assert not wrong, f"{len(wrong)} differ:\n" + "\n\n".join(wrong[:5])
