# SPDX-License-Identifier: Apache-2.0
"""Random scripts give NNabla's numbers, in every mode.

NNL_RANDOM_SCRIPTS is how many (60); NNL_RANDOM_SCRIPTS_FROM the first seed (0).
"""

import os
import warnings

import numpy as np
import pytest

from tests.interop import random_arrays, random_scripts, random_solvers
from tests.interop.here import run_here

pytestmark = pytest.mark.interop

GENERATORS = dict.fromkeys(random_scripts.KINDS, random_scripts)
GENERATORS |= {"solver": random_solvers, "array": random_arrays}
MODES = {"step": ("lambda f: f", "nn.compile", "nn.coexecute")}


@pytest.mark.parametrize("kind", GENERATORS)
def test_random_scripts_give_nnabla_s_numbers(nnabla, kind):
    first = int(os.environ.get("NNL_RANDOM_SCRIPTS_FROM", "0"))
    wrong = []
    for seed in range(first, first + int(os.environ.get("NNL_RANDOM_SCRIPTS", "60"))):
        text = GENERATORS[kind].script(seed, kind)
        for mode in MODES.get(kind, MODES["step"][:1]):
            try:
                want = nnabla.exec(f"run = lambda f: f\n{text}", {})
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)  # what overflows does in both
                    got = run_here(f"run = {mode}\n{text}", {})
                assert want and set(want) == set(got)
                for k in want:
                    np.testing.assert_allclose(got[k], want[k], rtol=2e-4, atol=2e-5, err_msg=k)
            except Exception as e:  # noqa: BLE001  (each script that differs is named below)
                wrong.append(f"seed {seed}, run = {mode}: {type(e).__name__}: {e}\n{text}")
    assert not wrong, f"{len(wrong)} differ:\n" + "\n\n".join(wrong[:5])
