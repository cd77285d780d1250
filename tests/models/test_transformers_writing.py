# SPDX-License-Identifier: Apache-2.0
"""What networks from folders write, beside transformers: folders, token by token, and texts."""

import json

import numpy as np
import pytest

import nnl as nn
from nnl import models
from nnl.models.generation.cached import Cached
from nnl.models.generation.sampling import Sampling
from nnl.models.huggingface.text import Text
from tests.models import checkpoints
from tests.models.checkpoints import torch, transformers
from tests.models.texts import CHAT, TEXTS

pytestmark = pytest.mark.long
WRITERS = ["gpt2", "llama-3", "qwen3", "gemma3", "phi4", "olmo2", "qwen2_moe", "smollm3"]


FAMILIES = {
    checkpoints.decoder: checkpoints.DECODERS,
    checkpoints.encoder: checkpoints.ENCODERS,
    checkpoints.t5: checkpoints.T5S,
    checkpoints.pictures: checkpoints.PICTURES,
}


@pytest.mark.parametrize(
    ("make", "name"),
    [pytest.param(make, n, id=f"{make.__name__}-{n}") for make, ns in FAMILIES.items() for n in ns],
)
def test_a_written_folder_is_loaded_by_transformers(make, name, tmp_path):
    theirs = make(name)
    theirs.save_pretrained(tmp_path / "theirs")
    models.from_huggingface(tmp_path / "theirs").to_huggingface(tmp_path / "ours")
    again, report = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    for k, v in theirs.state_dict().items():
        assert torch.equal(v, again.state_dict()[k]), k


def prompts(*lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(3, 60, n).tolist() for n in lengths]


def loaded(name, folder, seed=0):
    theirs = checkpoints.decoder(name, seed)
    theirs.save_pretrained(folder)
    with nn.parameter_scope(f"{name}{seed}"):
        return theirs, models.from_huggingface(folder)


def written(theirs, prompt, **how):
    """What transformers writes, without what ends it."""
    found = theirs.generate(torch.tensor([prompt]), do_sample=False, **how)[0, len(prompt) :]
    found = found.tolist()
    return found[: found.index(2)] if 2 in found else found


@pytest.mark.parametrize("name", WRITERS)
def test_greedy_texts_of_different_lengths_are_those_of_transformers(name, tmp_path):
    theirs, model = loaded(name, tmp_path)
    given = prompts(5, 11, 2)
    got = model.generate(given, max_tokens=20)
    assert got == [written(theirs, p, max_new_tokens=20) for p in given]
    assert len({t for text in got for t in text}) > 1


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize(
    ("beams", "length_penalty", "early"), [(2, 1.0, False), (4, 0.5, True), (3, 2.0, False)]
)
def test_beam_search_finds_what_transformers_finds(name, beams, length_penalty, early, tmp_path):
    theirs, model = loaded(name, tmp_path)
    with torch.no_grad():  # texts end now and then
        theirs.get_output_embeddings().weight[2] *= 3
    model.load({k: v.numpy() for k, v in theirs.state_dict().items() if k in _names(tmp_path)})
    given = prompts(4, 9, 6)
    how = {"length_penalty": length_penalty, "early_stopping": early}
    got = model.generate(given, max_tokens=10, beams=beams, **how)
    assert got == [written(theirs, p, num_beams=beams, max_new_tokens=10, **how) for p in given]


def _names(folder):
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "np") as f:
        return set(f.keys())


def test_long_prompts_are_read_in_parts(tmp_path):
    theirs, model = loaded("gemma3", tmp_path)
    cached = Cached(model, model.config, 2, 64, chunk=8)
    a, b = prompts(30, 17)
    scores = cached.start([a, b])
    for prompt, got in zip((a, b), scores, strict=True):
        with torch.no_grad():
            want = theirs(torch.tensor([prompt])).logits[0, -1].numpy()
        np.testing.assert_allclose(got, want, atol=1e-4)


def test_short_texts_of_a_network_for_long_ones(tmp_path, monkeypatch):
    """They have other rotary positions, also after a long one was written."""
    more = {"original_max_position_embeddings": 256, "max_position_embeddings": 1024}
    kind, sizes = checkpoints.DECODERS["phi3-long"]
    monkeypatch.setitem(checkpoints.DECODERS, "phi3-long", (kind, {**sizes, **more}))
    theirs, model = loaded("phi3-long", tmp_path)
    short, long = prompts(20, 300)
    for prompt in (short, long, short):
        want = written(theirs, prompt, max_new_tokens=10, eos_token_id=2)
        assert model.generate(prompt, max_tokens=10) == want


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "qwen2-sliding", "phi3"])
def test_weights_of_attention_are_those_of_transformers(name, tmp_path):
    theirs, model = loaded(name, tmp_path)
    tokens, weights = model.attention(range(5, 17))
    with torch.no_grad():
        want = theirs(torch.tensor([tokens]), output_attentions=True).attentions
    np.testing.assert_allclose(weights, torch.cat(want), atol=1e-5)
    with pytest.raises(ValueError, match="attention: got 2 prompts, wanted one"):
        model.attention([[3], [4]])
    with pytest.raises(ValueError, match="prompt 0 has the token 60, wanted 0 to 59"):
        model.attention([60])


HOW = [
    {"temperature": 0.7},
    {"temperature": 1.5, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.6},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 0.9, "repetition_penalty": 1.8},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 0.8},
]


@pytest.mark.parametrize("size, spread", [(50, 2), (5000, 8), (5000, 0.1)])
@pytest.mark.parametrize("how", HOW)
def test_probabilities_are_those_of_transformers(how, size, spread):
    scores = np.random.default_rng(0).normal(size=size).astype(np.float32) * spread
    text = [3, 7, 7, 40]
    t = transformers.generation.logits_process
    kinds = {
        "repetition_penalty": t.RepetitionPenaltyLogitsProcessor,
        "temperature": t.TemperatureLogitsWarper,
        "top_k": t.TopKLogitsWarper,
        "top_p": t.TopPLogitsWarper,
        "min_p": t.MinPLogitsWarper,
    }
    want = torch.tensor(scores)[None]
    for name, kind in kinds.items():
        if name in how:
            want = kind(how[name])(torch.tensor([text]), want)
    want = torch.softmax(want.double(), -1)[0].numpy()
    np.testing.assert_allclose(Sampling(**how).probabilities(scores, text), want, atol=1e-6)


def test_guessed_texts_have_the_distribution_of_the_large_model(tmp_path):
    theirs, model = loaded("llama", tmp_path / "large")
    _, guesser = loaded("llama", tmp_path / "small", 1)
    (prompt,) = prompts(5)
    model.writer.ends = ()
    how = Sampling(temperature=1.0, top_k=4)
    with torch.no_grad():
        first = how.probabilities(theirs(torch.tensor([prompt])).logits[0, -1].numpy(), [])
        want = {}
        for a in np.flatnonzero(first):
            after = theirs(torch.tensor([[*prompt, a]])).logits[0, -1].numpy()
            p = how.probabilities(after, [])
            want |= {(int(a), int(b)): first[a] * p[b] for b in np.flatnonzero(p)}
    drawn = [
        tuple(
            model.generate(
                prompt, 2, temperature=1.0, top_k=4, seed=seed, guesser=guesser, guesses=2
            )
        )
        for seed in range(1500)
    ]
    assert set(drawn) <= set(want)
    for pair, p in want.items():
        error = abs(drawn.count(pair) / len(drawn) - p)
        assert error < 4 * np.sqrt(p * (1 - p) / len(drawn)), pair


# ---- text ----

MESSAGES = [
    {"role": "system", "content": " be short "},
    {"role": "user", "content": "Größe?"},
]


@pytest.fixture
def folder(tmp_path):
    """A small model with a tokenizer, and the two of transformers."""
    sizes = {**checkpoints.SIZES, "vocab_size": 320}
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
    theirs.save_pretrained(tmp_path)
    tokenizer = checkpoints.tokenizer(chat_template=CHAT)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path, theirs, tokenizer


def test_tokens_are_those_of_transformers(folder):
    path, _, theirs = folder
    text = Text(path, "reader")
    for t in TEXTS:
        assert text.encode(t) == theirs(t)["input_ids"]
        assert text.decode([1, *text.encode(t), 2]) == t


@pytest.mark.parametrize("answer", [True, False])
def test_conversations_are_those_of_transformers(folder, answer):
    path, _, theirs = folder
    tools = [{"name": "größer"}]
    for more in ({}, {"tools": tools}):
        want = theirs.apply_chat_template(
            MESSAGES, tokenize=False, add_generation_prompt=answer, **more
        )
        assert Text(path, "reader").conversation(MESSAGES, answer, **more) == want


def test_templates_are_where_older_folders_have_them(folder):
    path, _, theirs = folder
    want = theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    file = path / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    for given in (
        CHAT,
        [{"name": "tool_use", "template": ""}, {"name": "default", "template": CHAT}],
    ):
        for f in path.glob("chat_template*"):
            f.unlink()
        bos = {"content": "<s>", "lstrip": False}
        file.write_text(json.dumps({**settings, "chat_template": given, "bos_token": bos}))
        assert Text(path, "reader").conversation(MESSAGES) == want
    file.write_text("{}")
    with pytest.raises(ValueError, match="has no chat template"):
        Text(path, "reader").conversation(MESSAGES)


def test_prompts_and_answers_are_text(folder):
    path, theirs, tokenizer = folder
    model = models.from_huggingface(path)
    prompts = ["the cat", "3 × 4 ="]
    want = []
    for p in prompts:
        ids = torch.tensor([tokenizer(p)["input_ids"]])
        found = theirs.generate(ids, max_new_tokens=10, do_sample=False)[0, ids.shape[1] :]
        want.append(tokenizer.decode(found, skip_special_tokens=True))
    assert model.generate(prompts, 10) == want
    assert model.generate(prompts[0], 10) == "".join(model.stream(prompts[0], 10)) == want[0]
    asked = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True)["input_ids"]
    answer = model.generate(list(asked), 10)
    assert model.chat(MESSAGES, 10) == tokenizer.decode(answer, skip_special_tokens=True)
