# SPDX-License-Identifier: Apache-2.0
"""Writing: what transformers writes, token by token, and distributions of what is drawn."""

import json

import numpy as np
import pytest

import nnl as nn
from nnl import models
from nnl.models.generation.cached import Cached
from nnl.models.generation.sampling import drawn

SIZES = {
    "model_type": "llama",
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}


def prompts(*lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(3, 60, n).tolist() for n in lengths]


def network(seed=0, **sizes):
    """A model with weights that all count."""
    rng = np.random.default_rng(seed)
    with nn.parameter_scope(f"network{seed}"):
        model = models.from_config({**SIZES, **sizes})
    for v in model.parameters().values():
        v.d = v.d + rng.normal(size=v.shape) * 0.3
    return model


def most_probable(model, prompt, count):
    """What greedy writing is: the whole text is read for every token."""
    text = list(prompt)
    for _ in range(count):
        y = model(nn.Variable.from_numpy_array(np.array([text])))
        y.forward(clear_buffer=True)
        text.append(int(y.d[0, -1].argmax()))
    return text[len(prompt) :]


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"model_type": "mistral", "sliding_window": 4},
        {"model_type": "gpt2", "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64},
    ],
)
def test_texts_of_different_lengths_are_what_is_written_without_caches(sizes):
    model = network(**sizes)
    given = prompts(5, 11, 2)
    got = model.generate(given, max_tokens=20)
    assert got == [most_probable(model, p, 20) for p in given]
    assert len({t for text in got for t in text}) > 5


def test_one_beam_is_greedy_and_more_find_texts_that_are_more_probable():
    model = network()

    def logarithm(prompt, text):
        y = model(nn.Variable.from_numpy_array(np.array([[*prompt, *text]])))
        y.forward(clear_buffer=True)
        s = y.d[0, len(prompt) - 1 : -1].astype(np.float64)
        s = s - np.log(np.exp(s).sum(-1, keepdims=True))
        return s[np.arange(len(text)), text].sum()

    for prompt in prompts(4, 9, 6):
        one, many = (model.generate(prompt, 8, beams=n) for n in (1, 6))
        assert one == most_probable(model, prompt, 8)
        assert logarithm(prompt, many) >= logarithm(prompt, one)


def test_texts_end_at_the_tokens_that_the_folder_names(tmp_path):
    model = network()
    (prompt,) = prompts(5)
    text = model.generate(prompt, max_tokens=12)
    model.writer.ends = (text[4],)
    assert model.generate(prompt, max_tokens=12) == text[: text.index(text[4])]
    model.to_huggingface(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    nn.clear_parameters()
    assert models.from_huggingface(tmp_path).writer.ends == (7, 9)


def test_the_tokenizers_end_ends_too(tmp_path):
    network().to_huggingface(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 7}')
    added = {"7": {"content": "<eos>"}, "9": {"content": "<|im_end|>"}}
    said = {"eos_token": {"content": "<|im_end|>"}, "added_tokens_decoder": added}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
    with nn.parameter_scope("ends"):
        assert models.from_huggingface(tmp_path).writer.ends == (7, 9)


def test_a_text_ends_with_the_last_position():
    model = network()
    model.writer.ends = ()
    (prompt,) = prompts(60)
    assert len(model.generate(prompt, max_tokens=20)) == 4
    assert len(model.generate(prompt, max_tokens=20, beams=2)) == 4
    assert len(model.generate(prompt, max_tokens=20, guesser=model)) == 4


# ---- choosing ----


def test_tokens_are_drawn_by_their_probabilities():
    p = np.array([0.5, 0.0, 0.2, 0.3, 0.0])
    rng = np.random.default_rng(0)
    counts = np.bincount([drawn(p, rng) for _ in range(20000)], minlength=5)
    assert not counts[[1, 4]].any()
    np.testing.assert_allclose(counts / 20000, p, atol=0.012)  # 3.5 deviations


def test_a_seed_gives_one_text_alone_and_beside_others():
    model = network()
    given = prompts(5, 9)
    how = {"max_tokens": 15, "temperature": 2.0}
    both = model.generate(given, seed=4, **how)
    assert model.generate(given, seed=4, **how) == both
    assert model.generate(given[0], seed=4, **how) == both[0]
    assert list(model.stream(given[0], seed=4, **how)) == both[0]
    assert model.generate(given, seed=5, **how) != both
    assert model.generate(given, **how) != model.generate(given, **how)


# ---- caches ----


def count_tokens(monkeypatch):
    """A list to which every run adds the number of tokens that count."""
    found, run = [], Cached._run

    def counted(self, rows, size, every):
        found.append(sum(map(len, rows)))
        return run(self, rows, size, every)

    monkeypatch.setattr(Cached, "_run", counted)
    return found


def test_what_the_caches_hold_is_not_read_again(monkeypatch):
    model = network()
    first, other = prompts(20, 4)
    text = model.generate(first, max_tokens=5)
    longer = [*first, *text, 9, 8]
    model.writer.latest.clear()
    want = model.generate(longer, max_tokens=5)
    model.writer.latest.clear()
    model.generate(first, max_tokens=5)
    counts = count_tokens(monkeypatch)
    assert model.generate(longer, max_tokens=5) == want
    assert counts[0] == 3  # the last token that was written, and the two new ones
    counts.clear()
    changed = [*first[:10], *other]
    got = model.generate(changed, max_tokens=5)
    assert counts[0] == 4
    model.writer.latest.clear()
    assert model.generate(changed, max_tokens=5) == got


@pytest.mark.parametrize(
    "sizes",
    [{}, {"model_type": "gpt2", "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64}],
)
def test_a_file_holds_a_program_of_any_number_of_tokens_and_its_caches(sizes, tmp_path):
    model = network(**sizes)
    (prompt,) = prompts(5)
    want = model.generate(prompt, max_tokens=8)
    model.save_program(tmp_path / "text.nnlp", capacity=32, chunk=8)
    programs = nn.load_program(tmp_path / "text.nnlp")
    assert sorted(programs) == ["read"]
    before, tokens = 0, prompt
    got = []
    while len(got) < len(want):
        y = programs.run("read", tokens=[tokens], before=[before], counts=[len(tokens)])
        before += len(tokens)
        tokens = [int(y["scores"].argmax())]
        got += tokens
    assert got == want


# ---- guessing ----


@pytest.mark.parametrize("seed", [0, 1])
def test_a_guesser_changes_nothing_but_the_number_of_runs(seed, monkeypatch):
    model = network()
    guesser = network(7) if seed else model
    given = prompts(5, 9)
    want = model.generate(given, max_tokens=15)
    counts = count_tokens(monkeypatch)
    assert model.generate(given, max_tokens=15, guesser=guesser, guesses=3) == want
    if not seed:  # all guesses are taken, four tokens a run
        assert sum(n == 4 for n in counts) == 2 * 4


# ---- wrong calls ----


@pytest.mark.parametrize(
    ("given", "how", "text"),
    [
        ([[3, 60]], {}, "prompt 0 has the token 60, wanted 0 to 59"),
        ([[3], [-1]], {}, "prompt 1 has the token -1"),
        ([[3], []], {}, "prompt 1 has no tokens"),
        ([], {}, "there are no prompts"),
        ([3] * 64, {}, "prompt 0 has 64 tokens, the network has 64 positions"),
        ([3], {"max_tokens": 0}, "max_tokens is 0, wanted at least 1"),
        ([3], {"temperature": -1.0}, "temperature is -1.0, wanted at least 0"),
        ([3], {"top_p": 0.0}, "top_p is 0.0, wanted more than 0"),
        ([3], {"min_p": 2.0}, "min_p is 2.0, wanted 0 to 1"),
        ([3], {"top_k": -1}, "top_k is -1, wanted at least 0"),
        ([3], {"repetition_penalty": 0.0}, "repetition_penalty is 0.0, wanted more than 0"),
        ([3], {"seed": -1}, "seed is -1, wanted at least 0"),
        ([3], {"beams": 0}, "beams is 0, wanted at least 1"),
        ([3], {"beams": 2, "temperature": 1.0}, "beam search takes neither temperature"),
        ([3], {"stop": ""}, "stop is '', wanted texts that are not empty"),
        ("hello", {}, "a network without a folder has no tokenizer"),
    ],
)
def test_wrong_calls_are_named(given, how, text):
    model = network()
    with pytest.raises(ValueError, match=text):
        model.generate(given, **how)


def test_prompts_of_other_types_are_named():
    model = network()
    with pytest.raises(TypeError, match="prompt 0 is .*, wanted a text or whole numbers"):
        model.generate([[1.5]])
    with pytest.raises(TypeError, match="prompt 1 is 'a', wanted what prompt 0 is"):
        model.generate([[3], "a"])
    with pytest.raises(ValueError, match="stream: got 2 prompts, wanted one"):
        next(model.stream([[3], [4]]))


def test_a_guesser_must_fit():
    model = network()
    for key, value, text in (
        ("vocab_size", 50, "guesser has 50 tokens, wanted 60"),
        ("max_position_embeddings", 8, "guesser has 8 positions, wanted 13"),
    ):
        guesser = network(value, **{key: value})
        with pytest.raises(ValueError, match=text):
            model.generate([3], 12, guesser=guesser)
    with pytest.raises(ValueError, match="guesses is 0, wanted at least 1"):
        model.generate([3], 12, guesser=model, guesses=0)


def test_a_full_cache_is_named():
    model = network()
    cached = Cached(model, model.config, 1, 8)
    with pytest.raises(ValueError, match="text 0 has 9 tokens, its cache takes 8"):
        cached.start([[3] * 9])
