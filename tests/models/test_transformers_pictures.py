# SPDX-License-Identifier: Apache-2.0
"""ViT, CLIP and SigLIP from folders beside transformers."""

import numpy as np
import pytest

import nnl as nn
from nnl import models
from tests.models import checkpoints
from tests.models.checkpoints import torch

pytestmark = pytest.mark.long
TOLERANCE = 1e-4  # float32 with another order of summation


def loaded(name, folder):
    theirs = checkpoints.pictures(name)
    theirs.save_pretrained(folder)
    return theirs, models.from_huggingface(folder)


def images(channels=3, batch=2):
    return np.random.default_rng(0).normal(size=(batch, channels, 32, 32)).astype(np.float32)


def close(y, want):
    y.forward(clear_buffer=True)
    np.testing.assert_allclose(y.d, want.numpy(), rtol=0, atol=TOLERANCE)


def test_vit_is_that_of_transformers(tmp_path):
    theirs, model = loaded("vit", tmp_path / "classes")
    x = images()
    with torch.no_grad():
        close(
            model(nn.Variable.from_numpy_array(x), head="classes"), theirs(torch.tensor(x)).logits
        )
    nn.clear_parameters()
    theirs, model = loaded("vit-summary", tmp_path / "summary")
    x = images(1)
    with torch.no_grad():
        want = theirs(torch.tensor(x))
    close(model(nn.Variable.from_numpy_array(x)), want.last_hidden_state)
    close(model(nn.Variable.from_numpy_array(x), head="summary"), want.pooler_output)
    with pytest.raises(ValueError, match="head is 'classes', this network has summary"):
        model(nn.Variable((1, 1, 32, 32)), head="classes")
    with pytest.raises(ValueError, match=r"\(1, 3, 32, 32\), wanted \(B, \(1, 32, 32\)\)"):
        model(nn.Variable((1, 3, 32, 32)))


@pytest.mark.parametrize("name", ["clip", "clip-old", "siglip"])
def test_vectors_and_scores_of_pairs_are_those_of_transformers(name, tmp_path):
    theirs, model = loaded(name, tmp_path)
    x, tokens = images(), np.random.default_rng(1).integers(3, 58, (3, 9))
    tokens[:, 6:] = 59  # ends a text
    with torch.no_grad():
        want = theirs(torch.tensor(tokens), torch.tensor(x))
    given = [nn.Variable.from_numpy_array(a) for a in (x, tokens)]
    close(model(*given), want.logits_per_image)
    close(model(given[0]), want.image_embeds)
    close(model(tokens=given[1]), want.text_embeds)
    with pytest.raises(ValueError, match=r"tokens has the shape \(1, 17\), wanted \(N, T\) with T"):
        model(tokens=nn.Variable((1, 17)))
