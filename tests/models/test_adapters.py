# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters: what they add, what is trained, their files, and wrong ones."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl import models
from nnl.cli.errors import UsageError
from nnl.cli.services.serve import opened
from nnl.core.parameters.safetensors import save
from tests.models.test_quantized_weights import difference, model, scores

GPT2 = {"model_type": "gpt2", "vocab_size": 96, "n_embd": 16, "n_head": 2, "n_layer": 2}
GPT2 |= {"n_positions": 16}
BERT = {
    "model_type": "bert", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 1, "num_attention_heads": 2,
}  # fmt: skip
T5 = {"model_type": "t5", "vocab_size": 96, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_heads": 2}
T5 |= {"num_layers": 1}


def drawn(parameters, seed=0):
    """Values for adapters that all count: B begins with zeros."""
    rng = np.random.default_rng(seed)
    for v in parameters.values():
        v.d = (rng.normal(size=v.shape) * 0.2).astype(np.float32)


def value(made, path):
    return made.parameters()[path].d.copy()


@pytest.mark.parametrize(
    ("more", "scale"), [({"alpha": 8}, 2.0), ({"alpha": 6, "rslora": True}, 3.0)]
)
def test_a_product_gets_what_the_formula_adds(more, scale):
    made = model()
    before = scores(made)
    trained = made.lora(4, targets="all-linear", **more)
    np.testing.assert_array_equal(scores(made), before)
    layers = ["attention/q", "attention/k", "attention/v", "attention/out", "gate", "up", "down"]
    wanted = [f"layer{i}/{name}/lora_{p}" for i in (1, 2) for name in layers for p in "AB"]
    assert sorted(trained) == sorted(wanted) == sorted(made.parameters(grad_only=True))
    assert abs(trained["layer1/down/lora_A"].d).max() <= 96**-0.5
    drawn(trained)
    found = scores(made)
    weights = {k: v.d.copy() for k, v in made.parameters().items()}
    with nn.parameter_scope("plain"):
        plain = model()
        for path, v in plain.parameters().items():
            v.d = weights[path]
            stem = path.removesuffix("/W")
            if f"{stem}/lora_A" in weights:
                v.d += scale * weights[f"{stem}/lora_B"] @ weights[f"{stem}/lora_A"]
        assert difference(found, scores(plain)) < 1e-5
    made.merge()
    assert difference(found, scores(made)) < 1e-5
    assert set(made.parameters(grad_only=True)) == set(plain.parameters())


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        (GPT2, ["transformer.h.0.attn.c_attn", "transformer.h.1.attn.c_attn"]),
        (BERT, ["encoder.layer.0.attention.self.query", "encoder.layer.0.attention.self.value"]),
        (
            T5,
            [
                *(f"decoder.block.0.layer.0.SelfAttention.{p}" for p in "qv"),
                *(f"decoder.block.0.layer.1.EncDecAttention.{p}" for p in "qv"),
                *(f"encoder.block.0.layer.0.SelfAttention.{p}" for p in "qv"),
            ],
        ),
    ],
)
def test_queries_and_values_have_adapters_if_nothing_is_said(sizes, names, tmp_path):
    made = models.from_config(sizes)
    made.lora()
    made.save_adapter(tmp_path)
    from safetensors import safe_open

    with safe_open(tmp_path / "adapter_model.safetensors", "np") as f:
        found = set(f.keys())
    assert found == {f"base_model.model.{n}.lora_{p}.weight" for n in names for p in "AB"}
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["fan_in_fan_out"] is (sizes is GPT2)
    assert config["target_modules"] == sorted({n.rpartition(".")[2] for n in names})


def training(made, ids, compiled=False, auto=False):
    """The losses of ten steps on the adapters of a network."""
    solver = S.Adam(0.02)
    solver.set_parameters(made.parameters(grad_only=True))
    targets = nn.Variable.from_numpy_array(ids[:, 1:].reshape(-1, 1))

    def step(tokens):
        y = F.reshape(made(tokens, train=True), (-1, 96))
        loss = F.mean(F.softmax_cross_entropy(y, targets))
        loss.forward()
        solver.zero_grad()
        loss.backward()
        solver.update()
        return loss

    run = nn.compile(step) if compiled else step
    with nn.auto_forward(auto):
        return [float(run(nn.Variable.from_numpy_array(ids[:, :-1])).d) for _ in range(10)]


@pytest.mark.parametrize("bits", [0, 4, 8])
@pytest.mark.parametrize("tied", [False, True])
def test_only_adapters_learn_over_any_weights_in_every_mode(bits, tied):
    made = model(intermediate_size=64, tie_word_embeddings=tied)
    if bits:
        made.quantize(bits)
    ids = np.random.default_rng(1).integers(0, 96, (2, 9))
    before = {k: v.d.copy() for k, v in made.parameters().items()}
    found = []
    for mode in ({}, {"compiled": True}, {"auto": True}):
        drawn(made.lora(4, alpha=4))
        assert set(nn.get_parameters()) == set(made.parameters(grad_only=True))
        found.append(training(made, ids, **mode))
    assert found[0][-1] < found[0][0] - 0.5
    np.testing.assert_allclose(found[1:], [found[0]] * 2, rtol=1e-3 if bits else 1e-4)
    for path, old in before.items():
        np.testing.assert_array_equal(value(made, path), old)
    assert all(np.any(v.d) for v in made.parameters(grad_only=True).values())


def test_gradients_over_quantized_weights_are_those_of_the_rounded_ones():
    """With a loss whose gradient by the scores is given, A and B get what the chain rule says."""
    made = models.from_config({**GPT2, "n_layer": 1, "n_embd": 32})
    made.quantize(8)
    trained = made.lora(2, alpha=4, targets=["c_proj"])
    drawn(trained)
    ids = nn.Variable.from_numpy_array(np.array([[5, 6, 7]]))
    y = made(ids)
    loss = F.sum(y * nn.Variable.from_numpy_array(np.random.default_rng(2).normal(size=y.shape)))

    def value_at():
        loss.forward()
        return float(loss.d)

    b = trained["layer1/down/lora_B"]
    value_at()
    loss.backward()
    got, direction = b.g.copy(), np.random.default_rng(3).normal(size=b.shape)
    old, h = b.d.copy(), 0.05
    b.d = old + h * direction
    high = value_at()
    b.d = old - h * direction
    # behind the last product only the head rounds its input, which moves the value by its steps
    assert abs((high - value_at()) / (2 * h) - (got * direction).sum()) < 0.05 * np.abs(got).sum()


def test_dropout_is_that_of_training_graphs():
    made = model()
    drawn(made.lora(4, dropout=0.5))
    ids = nn.Variable.from_numpy_array(np.random.default_rng(1).integers(0, 96, (2, 9)))
    np.testing.assert_array_equal(scores(made), scores(made))
    found = []
    for _ in range(2):
        y = made(ids, train=True)
        y.forward()
        found.append(y.d.copy())
    assert difference(*found) > 1e-3


@pytest.mark.parametrize("bits", [0, 8])
def test_what_is_saved_is_loaded_and_goes_on(bits, tmp_path):
    made = model()
    if bits:
        made.quantize(bits)
    without = made.generate([5, 6, 7], 6)
    drawn(made.lora(4, targets=r".*layers\.1\.self_attn\.[qko]_proj", alpha=24, rslora=True))
    want, text = scores(made), made.generate([5, 6, 7], 6)
    assert text != without
    made.save_adapter(tmp_path / "one")
    made.save_program(tmp_path / "m.nnlp", capacity=32, chunk=8)
    tokens = np.zeros((1, 8), np.int64)
    tokens[0, :3] = [5, 6, 7]
    program = nn.load_program(tmp_path / "m.nnlp")
    y = program.run("read", tokens=tokens, before=[0], counts=[3])["scores"]
    assert y.argmax() == text[0]
    made.lora()  # others
    assert made.generate([5, 6, 7], 6) == without
    loaded = made.load_adapter(tmp_path / "one")
    assert {k.rpartition("/")[0] for k in loaded} == {f"layer2/attention/{p}" for p in "qk"} | {
        "layer2/attention/out"
    }
    np.testing.assert_array_equal(scores(made), want)
    assert made.generate([5, 6, 7], 6) == text
    made.save_adapter(tmp_path / "two")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_merged_weights_keep_their_type_and_are_written(tmp_path):
    with nn.parameter_scope("first"):
        made = model()
        for v in made.parameters().values():
            v.data.cast(np.float16)
        made.to_huggingface(tmp_path / "base")
        bytes_of = (tmp_path / "base" / "model.safetensors").read_bytes()
    with nn.parameter_scope("second"):
        made = models.from_huggingface(tmp_path / "base")
        drawn(made.lora(4))
        with pytest.raises(ValueError, match="to_huggingface: the network has adapters: save_ada"):
            made.to_huggingface(tmp_path / "merged")
        want = scores(made)
        made.merge()
        assert value(made, "layer1/attention/q/W").dtype == np.float16
        assert difference(scores(made), want) < 1e-3
        made.to_huggingface(tmp_path / "merged")
    assert (tmp_path / "base" / "model.safetensors").read_bytes() == bytes_of  # it was mapped
    with nn.parameter_scope("third"):
        assert difference(scores(models.from_huggingface(tmp_path / "merged")), want) < 1e-3


def test_merged_groups_become_weights_that_may_be_rounded_again():
    made = model()
    made.quantize(8)
    drawn(made.lora(4))
    want = scores(made)
    made.merge()
    parts = set(made.parameters())
    assert "layer1/attention/q/W" in parts and "layer1/attention/q/codes" not in parts
    assert "layer1/attention/k/codes" in parts
    assert difference(scores(made), want) < 0.05  # inputs of 8 bits there, not here
    assert set(made.quantize(8)) == {f"layer{i}/attention/{p}" for i in (1, 2) for p in "qv"}
    assert difference(scores(made), want) < 0.05


@pytest.mark.parametrize("bits", [0, 8])
def test_rows_of_dora_have_the_lengths_that_are_trained(bits):
    made = model()
    if bits:
        made.quantize(bits)
    before = scores(made)
    trained = made.lora(4, targets=["q_proj", "up_proj"], dora=True)
    assert difference(scores(made), before) < (1e-2 if bits else 1e-5)
    drawn({k: v for k, v in trained.items() if "magnitude" not in k})
    rng = np.random.default_rng(1)
    for k, v in trained.items():
        if "magnitude" in k:
            v.d = v.d * rng.uniform(0.5, 1.5, v.shape)
    found, parts = scores(made), {k: v.d.copy() for k, v in made.parameters().items()}
    ids = rng.integers(0, 96, (2, 9))
    losses = training(made, ids)
    assert losses[-1] < losses[0]
    for k, v in trained.items():
        v.d = parts[k]
    made.merge()
    assert difference(found, scores(made)) < (0.05 if bits else 1e-5)
    if not bits:
        w = value(made, "layer1/up/W")
        want = parts["layer1/up/W"] + 2 * parts["layer1/up/lora_B"] @ parts["layer1/up/lora_A"]
        want *= (parts["layer1/up/lora_magnitude_vector"] / np.sqrt((want**2).sum(1)))[:, None]
        np.testing.assert_allclose(w, want, atol=1e-5)


def test_modules_that_are_saved_learn_and_go_when_adapters_do(tmp_path):
    made = model()
    before = {k: v.d.copy() for k, v in made.parameters().items()}
    without = scores(made)
    trained = made.lora(4, modules_to_save=["norm", "lm_head"])
    whole = {k for k in trained if "lora" not in k}
    assert whole == {"head/W", *(k for k in before if k.endswith("/gamma"))}
    drawn({k: v for k, v in trained.items() if "lora" in k})
    ids = np.random.default_rng(1).integers(0, 96, (2, 9))
    losses = training(made, ids)
    assert losses[-1] < losses[0] - 0.5
    for k, old in before.items():
        assert np.array_equal(value(made, k), old) == (k not in whole)
    made.save_adapter(tmp_path)
    want = scores(made)
    made.lora(4)
    np.testing.assert_array_equal(scores(made), without)
    assert set(made.load_adapter(tmp_path)) == set(trained)
    np.testing.assert_array_equal(scores(made), want)
    made.merge()
    assert difference(scores(made), want) < 1e-5


def test_frozen_parameters_stay_so_where_graphs_are_made():
    made = model()
    made.parameters()["tokens/W"].need_grad = False
    scores(made)
    assert "tokens/W" not in made.parameters(grad_only=True)


def test_what_cannot_be_trained_as_a_whole_is_named():
    made = model(intermediate_size=64, tie_word_embeddings=True)
    with pytest.raises(ValueError, match="has model.embed_tokens.weight, of which the head's"):
        made.lora(modules_to_save=["embed_tokens"])
    made.quantize(8)
    with pytest.raises(ValueError, match=r"has model.layers.0.self_attn.q_proj.weight, which is q"):
        made.lora(modules_to_save=["q_proj"])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"rank": 0}, "lora: rank is 0, wanted a whole number from 1 on"),
        ({"alpha": np.inf}, "lora: alpha is inf, wanted a finite number"),
        ({"dropout": 1.0}, "lora: dropout is 1.0, wanted a number from 0 up to 1"),
        ({"targets": ["q_proj", "c_attn"]}, "lora: targets has 'c_attn', which is no layer; there"),
        ({"targets": "nothing"}, "which is no layer; there are down_proj, gate_proj, k_proj, lm_"),
        ({"modules_to_save": ["score"]}, "lora: modules_to_save has 'score', which is no module; "),
        ({"targets": ["embed_tokens"]}, "lora: targets has 'embed_tokens', which is no layer"),
    ],
)
def test_wrong_arguments_are_named(given, text):
    made = model()
    with pytest.raises(ValueError, match=re.escape(text)):
        made.lora(**given)
    assert made.adapter is None and len(made.parameters(grad_only=True)) == 21
    for method in (made.merge, lambda: made.save_adapter("x")):
        with pytest.raises(ValueError, match="the network has no adapters; lora makes them"):
            method()


Q = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"


@pytest.mark.parametrize(
    ("config", "arrays", "text"),
    [
        ({"peft_type": "IA3"}, {}, "peft_type is 'IA3', wanted one of LORA"),
        ({"use_dora": True}, {}, "adapters of 2 layers are missing: model.layers.0.self_attn.q_p"),
        ({"bias": "all"}, {}, "bias is 'all', only 'none' is supported"),
        ({"modules_to_save": ["lm_head"]}, {}, "1 tensors of modules_to_save are missing: lm_head"),
        (
            {"modules_to_save": ["norm"]},
            {"base_model.model.model.norm.weight": (3,)},
            r"norm.weight has the shape \(3,\), wanted \(64,\)",
        ),
        ({"modules_to_save": [1]}, {}, r"modules_to_save is \[1\], wanted names"),
        ({"r": None}, {}, "r is missing"),
        ({"lora_alpha": "x"}, {}, "lora_alpha is 'x', wanted a number"),
        ({"target_modules": None}, {}, "target_modules is None, wanted names"),
        ({}, {Q.format(7, "A"): (4, 64)}, "1 tensors have no place in the network: base_model"),
        ({}, {Q.format(0, "A"): None}, "adapters of 1 layers are missing: model.layers.0.self_at"),
        ({}, {Q.format(0, "A"): (4, 63)}, r"shapes \(4, 63\) and \(64, 4\), wanted \(r, 64\)"),
        ({}, {Q.format(1, "B"): (64, 3)}, r"shapes \(4, 64\) and \(64, 3\), wanted \(r, 64\)"),
    ],
)
def test_wrong_folders_are_named_and_change_nothing(config, arrays, text, tmp_path):
    made = model()
    drawn(made.lora(4, targets=["q_proj"]))
    made.save_adapter(tmp_path)
    before = scores(made)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **config}))
    shapes = {Q.format(i, p): s for i in (0, 1) for p, s in (("A", (4, 64)), ("B", (64, 4)))}
    values = {k: np.zeros(s, np.float32) for k, s in (shapes | arrays).items() if s}
    save(tmp_path / "adapter_model.safetensors", values, {})
    with pytest.raises(ValueError, match=f"load_adapter: .*{text}"):
        made.load_adapter(tmp_path)
    np.testing.assert_array_equal(scores(made), before)


def test_damaged_and_missing_files_are_named(tmp_path):
    made = model()
    made.lora(4)
    made.save_adapter(tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(ValueError, match="load_adapter: .*adapter_model.safetensors"):
        made.load_adapter(tmp_path)
    file.unlink()
    with pytest.raises(ValueError, match="there is no adapter_model.safetensors"):
        made.load_adapter(tmp_path)
    with pytest.raises(ValueError, match="load_adapter: .*adapter_config.json"):
        made.load_adapter(tmp_path / "nothing")


@pytest.mark.parametrize("targets", [["lm_head", "q_proj"], ["q_proj"]])
def test_the_loss_is_that_of_the_scores(targets):
    made = model()
    drawn(made.lora(4, targets=targets))
    ids = np.random.default_rng(1).integers(0, 96, (2, 9))
    loss = made.loss(*map(nn.Variable.from_numpy_array, (ids[:, :-1], ids[:, 1:])))
    loss.forward()
    y = scores(made, ids[:, :-1]).reshape(-1, 96).astype(np.float64)
    chosen = y[np.arange(16), ids[:, 1:].ravel()]
    want = (np.log(np.exp(y).sum(1)) - chosen).mean()
    assert abs(float(loss.d) - want) < 1e-5 * want


def test_a_server_opens_a_folder_with_an_adapter(tmp_path):
    with nn.parameter_scope("first"):
        made = model()
        made.to_huggingface(tmp_path / "base")
        drawn(made.lora(4))
        want = scores(made)[0, -1]
        made.save_adapter(tmp_path / "adapter")
    with nn.parameter_scope("served"):
        served, rows, _ = opened(str(tmp_path / "base"), 1, 32, str(tmp_path / "adapter"))
    ids = np.random.default_rng(1).integers(0, 96, (2, 9))[0].tolist()
    assert difference(rows.feed([ids])[0], want) < 1e-5 and served.adapter is not None
    with pytest.raises(UsageError, match="--adapter is for a folder or a .gguf"):
        opened("m.nnlp", None, None, "adapter")
