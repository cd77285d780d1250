# SPDX-License-Identifier: Apache-2.0
"""T5 and Whisper from folders beside transformers."""

import numpy as np
import pytest

import nnl as nn
from nnl import models
from tests.models import checkpoints
from tests.models.checkpoints import torch

pytestmark = pytest.mark.long
TOLERANCE = 1e-4  # float32 with another order of summation


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


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", checkpoints.T5S)
def test_answers_are_those_of_transformers(name, beams, tmp_path):
    theirs = checkpoints.t5(name, initializer_factor=4.0)
    theirs.save_pretrained(tmp_path)
    model = models.from_huggingface(tmp_path)
    rng = np.random.default_rng(0)
    given = [rng.integers(3, 60, n).tolist() for n in (9, 4, 20)]
    got = model.generate(given, 12, beams=beams)
    for source, answer in zip(given, got, strict=True):
        want = theirs.generate(torch.tensor([source]), num_beams=beams, max_new_tokens=12)
        want = want[0, 1:].tolist()
        assert answer == (want[: want.index(2)] if 2 in want else want)
    if beams == 1:
        assert len({t for text in got for t in text}) > 3
        assert list(model.stream(given[0], 12)) == got[0]
        model.writer.ends = (got[0][2],)  # who ends first leaves the others their sources
        assert model.generate(given, 12) == [model.generate(source, 12) for source in given]
    with pytest.raises(ValueError, match="prompt 1 has the token 60"):
        model.generate([[3], [60]])
    with pytest.raises(ValueError, match="a guesser cannot guess answers to a source"):
        model.generate([3], guesser=model)


def sound(batch=2):
    return np.random.default_rng(0).normal(size=(batch, 8, 20)).astype(np.float32)


def test_scores_of_whisper_are_those_of_transformers(tmp_path):
    theirs = checkpoints.whisper()
    theirs.save_pretrained(tmp_path / "theirs")
    model = models.from_huggingface(tmp_path / "theirs")
    tokens = np.random.default_rng(0).integers(3, 60, (2, 9))
    with torch.no_grad():
        want = theirs(torch.tensor(sound()), decoder_input_ids=torch.tensor(tokens)).logits
    y = model(*map(nn.Variable.from_numpy_array, (sound(), tokens)))
    y.forward(clear_buffer=True)
    np.testing.assert_allclose(y.d, want.numpy(), rtol=0, atol=TOLERANCE)
    model.to_huggingface(tmp_path / "ours")
    again, report = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    for k, v in theirs.state_dict().items():
        assert torch.equal(v, again.state_dict()[k]), k


def test_what_whisper_hears_is_the_most_probable_text(tmp_path):
    theirs = checkpoints.whisper(init_std=0.3)
    theirs.save_pretrained(tmp_path)
    model = models.from_huggingface(tmp_path)
    got = model.generate(sound(), 10)
    for heard, answer in zip(sound(), got, strict=True):
        text = [3]
        with torch.no_grad():
            for _ in range(10):
                ids = torch.tensor([text])
                y = theirs(torch.tensor(heard[None]), decoder_input_ids=ids).logits[0, -1]
                text.append(int(y.argmax()))
        want = text[1:]
        assert answer == (want[: want.index(2)] if 2 in want else want)
    assert model.generate(sound()[0], 10) == got[0] and len({*got[0], *got[1]}) > 3
    with pytest.raises(ValueError, match=r"the sound has the shape \(8, 19\), wanted \(8, 20\)"):
        model.generate(sound()[0, :, 1:])
    with pytest.raises(ValueError, match=r"sound has the shape \(1, 8, 19\), wanted \(B, 8, 20\)"):
        model(nn.Variable((1, 8, 19)), nn.Variable((1, 3)))
