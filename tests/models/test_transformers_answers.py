# SPDX-License-Identifier: Apache-2.0
"""T5 from folders beside transformers."""

import numpy as np
import pytest

import nnl as nn
from nnl import models
from tests.models import checkpoints
from tests.models.checkpoints import torch

pytestmark = pytest.mark.long
TOLERANCE = 1e-4  # float32 with another order of summation


@pytest.fixture(autouse=True)
def no_parameters():
    nn.clear_parameters()
    yield
    nn.clear_parameters()


@pytest.mark.parametrize("name", checkpoints.T5S)
def test_scores_of_t5_are_those_of_transformers(name, tmp_path):
    theirs = checkpoints.t5(name)
    theirs.save_pretrained(tmp_path)
    model = models.from_huggingface(tmp_path)
    rng = np.random.default_rng(0)
    source, tokens = rng.integers(3, 60, (2, 30)), rng.integers(3, 60, (2, 20))
    keep = np.ones((2, 30), np.int64)
    keep[1, 20:] = 0
    with torch.no_grad():
        want = theirs(torch.tensor(source), torch.tensor(keep), torch.tensor(tokens)).logits
    y = model(*map(nn.Variable.from_numpy_array, (source, tokens)),
              keep=nn.Variable.from_numpy_array(keep))  # fmt: skip
    y.forward(clear_buffer=True)
    np.testing.assert_allclose(y.d, want.numpy(), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", checkpoints.T5S)
def test_a_written_folder_is_loaded_by_transformers(name, tmp_path):
    theirs = checkpoints.t5(name)
    theirs.save_pretrained(tmp_path / "theirs")
    models.from_huggingface(tmp_path / "theirs").to_huggingface(tmp_path / "ours")
    again, report = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    for k, v in theirs.state_dict().items():
        assert torch.equal(v, again.state_dict()[k]), k
