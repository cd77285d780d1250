# SPDX-License-Identifier: Apache-2.0
"""Learning: texts side by side in a row, costs of labels, lessons of samples, perplexity."""

from math import exp, log

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl import models
from nnl.models.huggingface.text import Text
from tests.models.test_generation import SIZES, network, prompts
from tests.models.texts import CHAT, write_folder

CLOSE = {"rtol": 0, "atol": 2e-5}  # float32 in another order of summation
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
GEMMA = {"sliding_window": 4, "query_pre_attn_scalar": 20, "head_dim": 16}
FAMILIES = {
    "llama": {},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gemma2": {**GEMMA, "final_logit_softcapping": 3.0, "attn_logit_softcapping": 5.0},
    "qwen3_moe": MOE,
}


def variable(values):
    return nn.Variable.from_numpy_array(np.asarray(values))


def packed(texts, length):
    """(tokens, labels, positions) of one row."""
    row = np.zeros((3, 1, length), np.int64)
    row[1] = -100
    at = 0
    for text in texts:
        part = slice(at, at + len(text))
        row[0, 0, part], row[2, 0, part] = text, np.arange(len(text))
        row[1, 0, at : at + len(text) - 1] = text[1:]
        at += len(text)
    return row


def costs(model, tokens, labels, positions=None):
    y = model(
        variable(tokens),
        labels=variable(labels),
        positions=None if positions is None else variable(positions),
    )
    y.forward()
    return y.d


def of_scores(model, tokens):
    """Costs of the tokens of one text, from scores."""
    y = model(variable([tokens]))
    y.forward()
    s = y.d[0, :-1].astype(np.float64)
    return np.log(np.exp(s).sum(-1)) - s[np.arange(len(s)), tokens[1:]]


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_in_one_row_cost_what_they_cost_alone(family):
    model = network(model_type=family, **FAMILIES[family])
    texts = prompts(7, 1, 12, 5)
    found = costs(model, *packed(texts, 32))[0]
    at = 0
    for text in texts:
        np.testing.assert_allclose(
            found[at : at + len(text) - 1], of_scores(model, text), err_msg=family, **CLOSE
        )
        at += len(text)
    assert not found[at - 1 :].any()


def test_gradients_of_texts_in_one_row_are_those_of_each_alone():
    model = network()
    texts = prompts(6, 9)
    grads = []
    for rows in ([packed(texts, 16)], [packed([t], 9) for t in texts]):
        for v in model.parameters().values():
            v.grad.zero()
        for tokens, labels, positions in rows:
            each = model(variable(tokens), labels=variable(labels), positions=variable(positions))
            F.sum(each).forward()
            F.sum(each).backward()
        grads.append({k: v.g.copy() for k, v in model.parameters().items()})
    for k, g in grads[0].items():
        np.testing.assert_allclose(g, grads[1][k], rtol=1e-4, atol=1e-4, err_msg=k)


def test_dropout_keeps_texts_apart():
    layers = models.Stack(16, 2, 32, (models.Layer(),) * 2, causal=True, dropout=1e-12)
    config = models.Decoder(60, 32, layers, learned=True, tied=True)
    texts = prompts(5, 6)

    def model(tokens, **kw):
        return models.decoder(tokens, config, **kw)

    found = costs(model, *packed(texts, 11))[0]
    np.testing.assert_allclose(found[:4], of_scores(model, texts[0]), **CLOSE)
    np.testing.assert_allclose(found[5:10], of_scores(model, texts[1]), **CLOSE)


def test_loss_is_the_mean_of_what_counts():
    model = network()
    tokens, labels, positions = packed(prompts(4, 5), 12)
    each = costs(model, tokens, labels, positions)
    loss = model.loss(variable(tokens), variable(labels), variable(positions))
    loss.forward()
    assert loss.d == pytest.approx(each.sum() / 7, rel=1e-6)
    loss = model.loss(variable(tokens), variable(np.full_like(labels, -100)))
    loss.forward()
    assert loss.d == 0


def test_costs_of_quantized_scores():
    model = network(tie_word_embeddings=True)
    model.quantize(bits=8, group_size=16)
    tokens, labels, _ = packed(prompts(9), 12)
    want = of_scores(model, tokens[0, :9].tolist())
    np.testing.assert_allclose(costs(model, tokens, labels)[0, :8], want, rtol=0, atol=0.02)


def test_positions_and_labels_have_the_shape_of_tokens():
    model = network()
    for name in ("positions", "labels"):
        with pytest.raises(ValueError, match=rf"decoder: {name} has the shape \(4,\), wanted that"):
            model(nn.Variable((1, 4)), **{name: nn.Variable((4,))})


# ---- perplexity ----


@pytest.mark.parametrize(("length", "stride"), [(0, 0), (8, 1), (8, 7), (9, 4), (2, 1)])
def test_perplexity_is_that_of_each_token_by_what_stands_before_it(length, stride):
    model = network(max_position_embeddings=16)
    (text,) = prompts(41)
    own, step = length or 16, stride or 8
    total, reached, begin = 0.0, 1, 0
    while reached < len(text):
        end = min(begin + own, len(text))
        total += of_scores(model, text[begin:end])[reached - begin - 1 :].sum()
        reached, begin = end, begin + step
    found = model.perplexity(text, length, stride)
    assert log(found) == pytest.approx(total / 40, abs=1e-5)


def test_perplexity_of_equal_scores_is_the_number_of_tokens():
    model = models.from_config(SIZES)
    model.parameters()["head/W"].d = 0
    assert model.perplexity([5, 6, 7]) == pytest.approx(60, rel=1e-5)


def test_perplexity_names_what_it_wants():
    model = models.from_config(SIZES)
    for text, size, named in (
        ([5], (), "perplexity: text has 1 tokens, wanted at least 2"),
        ([5, 6], (65,), "length is 65 and stride 32, wanted a length from 2 to 64"),
        ([5, 6], (8, 8), "length is 8 and stride 8, .* and a stride below it"),
        ([5, 60], (), "the token 60, wanted 0 to 59"),
    ):
        with pytest.raises(ValueError, match=named):
            model.perplexity(text, *size)


# ---- lessons ----


@pytest.fixture
def folder(tmp_path):
    write_folder(tmp_path)
    nn.clear_parameters()
    return tmp_path


def learned(text, sample, end=None):
    tokens, which = text.lesson(sample, end)
    return text.tokenizer.decode(
        [t for t, own in zip(tokens, which, strict=True) if own], skip_special_tokens=False
    )


TALK = [
    {"role": "user", "content": "Größe?"},
    {"role": "assistant", "content": " 3 × 4 "},
    {"role": "user", "content": "the cat"},
    {"role": "assistant", "content": "sat on the mat"},
]


def test_what_is_learned_of_a_sample(folder):
    text = Text(folder, "here")
    assert learned(text, {"text": "the cat"}, 2) == "the cat</s>"
    assert learned(text, {"text": "the cat"}) == "the cat"
    assert learned(text, {"prompt": "the cat", "completion": " sat"}, 2) == " sat</s>"
    assert learned(text, {"prompt": "", "answer": "日本語"}, 2) == "日本語</s>"
    assert learned(text, {"messages": TALK}) == "3 × 4</s>sat on the mat</s>"
    tokens, _ = text.lesson({"messages": TALK})
    assert tokens == text.encode(text.conversation(TALK, answer=False), special=False)


def test_a_template_says_itself_what_is_learned(folder):
    marked = CHAT.replace(
        "{{ m.content | trim }}{{ eos_token }}",
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content | trim }}{% endgeneration %}"
        "{% else %}{{ m.content | trim }}{% endif %}{{ eos_token }}",
    )
    plain = Text(folder, "here").conversation(TALK)
    (folder / "chat_template.jinja").write_text(marked)
    text = Text(folder, "here")
    assert text.conversation(TALK) == plain
    assert learned(text, {"messages": TALK}) == "3 × 4sat on the mat"


def test_a_model_ends_its_lessons(folder):
    model = models.from_huggingface(folder)
    tokens, which = model.lesson({"prompt": "the", "answer": " cat"})
    assert tokens[-1] == 2 and which == [False] + [True] * (len(tokens) - 1)


@pytest.mark.parametrize(
    ("sample", "named"),
    [
        ({"question": "1", "say": 2}, "a sample has 'question', 'say'; wanted texts as 'text'"),
        ({}, "a sample has nothing; wanted"),
        ({"prompt": "the", "answer": 3}, "a sample has 'prompt', 'answer'; wanted texts"),
        ({"messages": ["hello"]}, "messages has an entry without a role"),
        ({"messages": [{"role": "tool", "content": ""}]}, "refuses the messages: no tools"),
    ],
)
def test_samples_that_are_no_lessons_are_named(folder, sample, named):
    with pytest.raises(ValueError, match=named):
        Text(folder, "here").lesson(sample)


def test_answers_that_cannot_be_told_are_named(folder):
    last = "{% for m in messages %}{% if loop.last %}!{% endif %}{{ m.content }}{% endfor %}"
    (folder / "chat_template.jinja").write_text(last)
    with pytest.raises(ValueError, match="writes message 1 in another way at the end"):
        Text(folder, "here").lesson({"messages": TALK})


# ---- beside transformers ----


@pytest.mark.long
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "qwen3", "mistral"])
def test_packed_rows_cost_what_transformers_says(name, tmp_path):
    from tests.models import checkpoints
    from tests.models.checkpoints import torch

    theirs = checkpoints.decoder(name)
    theirs.save_pretrained(tmp_path)
    model = models.from_huggingface(tmp_path)
    tokens, labels, positions = packed(prompts(7, 1, 12, 5), 25)
    with torch.no_grad():
        # without a mask, its attention tells texts apart by positions that begin again
        scores = theirs(
            torch.tensor(tokens), position_ids=torch.tensor(positions), use_cache=False
        ).logits
        want = torch.nn.functional.cross_entropy(
            scores[0], torch.tensor(labels[0]), reduction="none", ignore_index=-100
        ).numpy()
    np.testing.assert_allclose(costs(model, tokens, labels, positions)[0], want, rtol=0, atol=1e-4)


@pytest.mark.long
def test_perplexity_is_that_of_transformers_documented_way(tmp_path):
    from tests.models import checkpoints
    from tests.models.checkpoints import torch

    theirs = checkpoints.decoder("gpt2")
    theirs.save_pretrained(tmp_path)
    model = models.from_huggingface(tmp_path)
    (text,) = prompts(150)
    ids, length, stride = torch.tensor([text]), 64, 24
    total, count, reached = 0.0, 0, 0
    for begin in range(0, len(text), stride):
        end = min(begin + length, len(text))
        target = ids[:, begin:end].clone()
        target[:, : -(end - reached)] = -100
        with torch.no_grad():
            loss = theirs(ids[:, begin:end], labels=target).loss
        n = int((target[:, 1:] != -100).sum())  # the page approximates it
        total, count, reached = total + float(loss) * n, count + n, end
        if end == len(text):
            break
    assert count == 149
    assert model.perplexity(text, length, stride) == pytest.approx(exp(total / count), rel=1e-4)


@pytest.mark.long
def test_lessons_of_conversations_are_those_of_transformers(folder):
    from tests.models import checkpoints

    marked = CHAT.replace(
        "{{ m.content | trim }}", "{% generation %}{{ m.content }}{% endgeneration %}"
    )
    (folder / "chat_template.jinja").write_text(marked)
    theirs = checkpoints.tokenizer(chat_template=marked).apply_chat_template(
        TALK, return_dict=True, return_assistant_tokens_mask=True
    )
    tokens, which = Text(folder, "here").lesson({"messages": TALK})
    assert tokens == theirs["input_ids"]
    assert which == [bool(n) for n in theirs["assistant_masks"]]
