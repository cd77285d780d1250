# SPDX-License-Identifier: Apache-2.0
"""Encoders from folders beside transformers, and vectors of texts."""

import json

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl import models
from tests.models import checkpoints
from tests.models.checkpoints import torch, transformers
from tests.models.texts import TEXTS

pytestmark = pytest.mark.long
TOLERANCE = 1e-4  # float32 with another order of summation


def given(padding=0):
    rng = np.random.default_rng(1)
    ids, segments = rng.integers(3, 60, (2, 9)), rng.integers(0, 2, (2, 9))
    keep = np.ones((2, 9), np.int64)
    keep[1, 6:] = 0
    ids[1, 6:] = padding
    return ids, segments, keep


@pytest.mark.parametrize("name", checkpoints.ENCODERS)
def test_what_a_network_gives_is_what_transformers_gives(name, tmp_path):
    *_, more, head = checkpoints.ENCODERS[name]
    theirs = checkpoints.encoder(name)
    theirs.save_pretrained(tmp_path)
    model = models.from_huggingface(tmp_path)
    ids, segments, keep = given(more.get("pad_token_id", 0))
    asked = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(keep)}
    kinds = None
    if name.startswith("bert"):
        asked["token_type_ids"] = torch.tensor(segments)
        kinds = nn.Variable.from_numpy_array(segments)
    with torch.no_grad():
        found = theirs(**asked)
    field = {"": "last_hidden_state", "summary": "pooler_output"}.get(head, "logits")
    want = found[field].numpy()
    y = model(*map(nn.Variable.from_numpy_array, (ids,)), segments=kinds,
              keep=nn.Variable.from_numpy_array(keep), head=head)  # fmt: skip
    y.forward(clear_buffer=True)
    rows = slice(None, 6) if want.ndim == 3 else slice(None)  # padding says nothing
    np.testing.assert_allclose(y.d[0], want[0], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(y.d[1][rows], want[1][rows], rtol=0, atol=TOLERANCE)


def test_files_with_more_and_older_names_are_read(tmp_path):
    theirs = checkpoints.encoder("bert-summary")
    theirs.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    old = {"bert." + k.replace("LayerNorm.weight", "LayerNorm.gamma"): v.clone()
           for k, v in theirs.state_dict().items()}  # fmt: skip
    old["cls.seq_relationship.weight"] = torch.zeros(2, 32)
    old["bert.embeddings.position_ids"] = torch.arange(64)[None]
    torch.save(old, tmp_path / "pytorch_model.bin")
    model = models.from_huggingface(tmp_path)
    ids = given()[0]
    y = model(nn.Variable.from_numpy_array(ids), head="summary")
    y.forward()
    with torch.no_grad():
        want = theirs(torch.tensor(ids)).pooler_output.numpy()
    np.testing.assert_allclose(y.d, want, rtol=0, atol=TOLERANCE)


# ---- vectors ----


def pooled(theirs, ids, pooling, normalized):
    """A vector of one text, as sentence-transformers makes it."""
    with torch.no_grad():
        h = theirs(torch.tensor([ids])).last_hidden_state[0]
    y = {"mean": h.mean(0), "max": h.max(0).values, "first": h[0]}[pooling]
    return (y / y.norm() if normalized else y).numpy()


@pytest.mark.parametrize("pooling", ["mean", "max", "first"])
@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_vectors_do_not_depend_on_what_is_beside_a_text(name, pooling, tmp_path):
    theirs = checkpoints.encoder(name)
    theirs.save_pretrained(tmp_path)
    model = models.from_huggingface(tmp_path)
    rng = np.random.default_rng(0)
    texts = [rng.integers(3, 60, n).tolist() for n in rng.integers(1, 40, 35)]
    for normalized in (True, False):
        got = model.vectors(texts, pooling, normalized)
        for text, y in zip(texts, got, strict=True):
            want = pooled(theirs, text, pooling, normalized)
            np.testing.assert_allclose(y, want, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(model.vectors(texts[3], pooling, False), got[3], atol=1e-6)


def test_a_folder_says_how_vectors_are_made(tmp_path):
    sizes = {**checkpoints.READS, "vocab_size": 320}
    torch.manual_seed(0)
    theirs = transformers.BertModel(transformers.BertConfig(**sizes)).eval()
    theirs.save_pretrained(tmp_path)
    tokenizer = checkpoints.tokenizer()
    tokenizer.save_pretrained(tmp_path)
    ids = [tokenizer(t)["input_ids"] for t in TEXTS]
    types = [{"type": "sentence_transformers.models.Transformer"},
             {"type": "sentence_transformers.models.Pooling"}]  # fmt: skip
    (tmp_path / "modules.json").write_text(json.dumps(types))
    (tmp_path / "1_Pooling").mkdir()
    noted = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(noted))
    got = models.from_huggingface(tmp_path).vectors(TEXTS)
    np.testing.assert_allclose(got, [pooled(theirs, i, "first", False) for i in ids], atol=1e-4)
    noted["pooling_mode_mean_tokens"] = True
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(noted))
    with pytest.raises(ValueError, match="only one of pooling_mode_cls_token"):
        models.from_huggingface(tmp_path).vectors(TEXTS)


def test_wrong_calls_are_named(tmp_path):
    checkpoints.encoder("bert").save_pretrained(tmp_path)
    model = models.from_huggingface(tmp_path)
    for texts, text in (
        ([[3], []], "text 1 has 0 tokens, wanted 1 to 64"),
        ([3] * 65, "text 0 has 65 tokens, wanted 1 to 64"),
        ([60], "text 0 has the token 60, wanted 0 to 59"),
    ):
        with pytest.raises(ValueError, match=text):
            model.vectors(texts)
    with pytest.raises(ValueError, match="pooling is 'sum', wanted one of mean, first, max"):
        model.vectors([3], "sum")
    with pytest.raises(ValueError, match="generate: bert does not write"):
        model.generate([3])
    with pytest.raises(ValueError, match="head is 'masked', this network has summary"):
        model(nn.Variable((1, 3)), head="masked")
    with pytest.raises(ValueError, match=r"tokens has the shape \(1, 65\), wanted \(B, T\) with T"):
        model(nn.Variable((1, 65)))
    checkpoints.decoder("llama").save_pretrained(tmp_path / "llama")
    nn.clear_parameters()
    with pytest.raises(ValueError, match="vectors: llama gives no vectors of texts"):
        models.from_huggingface(tmp_path / "llama").vectors([3])


def test_an_encoder_learns_from_its_vectors():
    sizes = {**checkpoints.READS, "model_type": "bert"}
    model = models.from_config(sizes)
    tokens = nn.Variable.from_numpy_array(given()[0])
    h = model(tokens)
    y = models.sentence_vectors(h, F.constant(1.0, tokens.shape))
    loss = F.sum(y * nn.Variable.from_numpy_array(np.random.default_rng(0).normal(size=y.shape)))
    loss.forward(clear_no_need_grad=True)
    loss.backward(clear_buffer=True)
    used = [k for k, v in model.parameters().items() if not v.grad.zeroing and v.g.any()]
    assert len(used) == len(model.parameters()) - 2  # the summary is not asked for
