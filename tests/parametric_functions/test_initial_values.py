# SPDX-License-Identifier: Apache-2.0
"""Parameters have NNabla's names, shapes, flags and initial values, bit for bit."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nnl as nn
from nnl import parametric_functions as PF
from nnl.core.ops import random as nnl_random
from nnl.parametric_functions import initializer
from tests.parametric_functions import layers, quantized_layers

FILES = ("initial_values.json", "quantized_initial_values.json")
EXPECTED = {
    name: wanted
    for file in FILES
    for name, wanted in json.loads(Path(__file__).with_name(file).read_text()).items()
}


def cases():
    """{name: a call of layers}; initializers keep the generator of their making."""
    return {**layers.cases(nn, PF, initializer), **quantized_layers.cases(nn, PF, initializer)}


CASES = cases()
FIRST_WORDS = ["0xbecb77c5", "0x3d73d8ba", "0x3edb8900", "0x3e0f7d3a"]


@pytest.fixture(autouse=True)
def _seeded():
    nn.seed(313)


def test_every_case_has_expected_values():
    assert list(CASES) == list(EXPECTED)


@pytest.mark.parametrize("name", list(CASES))
def test_parameters_are_those_of_nnabla(name):
    made = cases()
    nn.seed(313)
    made[name]()
    got = [
        [
            n,
            list(p.shape),
            p.need_grad,
            p.d.dtype.name,
            hashlib.sha256(p.d.tobytes()).hexdigest()[:16],
        ]
        for n, p in nn.get_parameters(grad_only=False).items()
    ]
    assert got == EXPECTED[name]["parameters"]
    assert nnl_random.prng.random_sample() == EXPECTED[name]["next"]


def test_first_weights_of_a_process_without_a_seed():
    """float32 words as NNabla 1.39 makes them in a fresh process."""
    script = (
        "import nnl as nn, numpy as np\n"
        "from nnl import parametric_functions as PF\n"
        "PF.affine(nn.Variable((2, 3, 4)), 5)\n"
        "w = nn.get_parameters()['affine/W'].d\n"
        "print(*[hex(n) for n in w.ravel()[:4].view(np.uint32)])"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert out.split() == FIRST_WORDS


def test_svd_affine_starts_from_the_singular_vectors_of_one_weight():
    PF.svd_affine(nn.Variable((2, 12)), 5, 3)
    p = nn.get_parameters()
    limit = np.sqrt(6 / 17)
    whole = np.random.RandomState(313).uniform(-limit, limit, (12, 5)).astype(np.float32)
    left, values, right = np.linalg.svd(whole, full_matrices=False)
    np.testing.assert_allclose(p["svd_affine/U"].d, left[:, :3] * values[:3], atol=1e-6)
    np.testing.assert_allclose(p["svd_affine/V"].d, right[:3], atol=1e-6)
    assert p["svd_affine/U"].d.dtype == np.float32
    assert nnl_random.prng.random_sample() == 0.06871159506455626  # as under NNabla


def test_weight_normalization_starts_as_the_identity():
    w = nn.Variable.from_numpy_array(np.random.default_rng(0).normal(size=(4, 3, 3)).astype("f"))
    with nn.auto_forward():
        y = PF.weight_normalization(w, dim=1)
    np.testing.assert_allclose(y.d, w.d, rtol=1e-5)
    g = nn.get_parameters()["wn/g"]
    np.testing.assert_allclose(g.d, np.sqrt((w.d**2).sum((0, 2))), rtol=1e-5)


def test_apply_w_registers_its_parameters_inside_the_scope():
    PF.affine(nn.Variable((2, 3)), 5, apply_w=lambda w: PF.weight_normalization(w, dim=1))
    assert list(nn.get_parameters()) == ["affine/W", "affine/wn/g", "affine/b"]
