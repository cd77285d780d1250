# SPDX-License-Identifier: Apache-2.0
"""Decoders from folders beside transformers."""

import numpy as np
import pytest

import nnl as nn
from nnl import models
from tests.models import checkpoints
from tests.models.checkpoints import torch

pytestmark = pytest.mark.long
TOLERANCE = 1e-4  # float32 with another order of summation


def tokens(batch=2, length=13, seed=1):
    return np.random.default_rng(seed).integers(3, 60, (batch, length))


def scores(model, ids):
    y = model(nn.Variable.from_numpy_array(ids))
    y.forward(clear_buffer=True)
    return y.d


@pytest.mark.parametrize("name", checkpoints.DECODERS)
def test_scores_are_those_of_transformers(name, tmp_path):
    theirs = checkpoints.decoder(name)
    theirs.save_pretrained(tmp_path)
    model = models.from_huggingface(tmp_path)
    ids = tokens()
    with torch.no_grad():
        want = theirs(torch.tensor(ids)).logits.numpy()
    assert abs(want).max() > 0.05
    np.testing.assert_allclose(scores(model, ids), want, rtol=0, atol=TOLERANCE)
