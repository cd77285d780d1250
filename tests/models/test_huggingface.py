# SPDX-License-Identifier: Apache-2.0
"""Folders that do not fit: what is wrong is named, and nothing is changed."""

import json

import ml_dtypes
import numpy as np
import pytest

import nnl as nn
from nnl import models
from nnl.converters.weights.folder import read_folder, write_folder
from nnl.core.arrays.spec import ShapeError
from nnl.models.huggingface.pretrained import FAMILIES

SIZES = {
    "model_type": "llama",
    "vocab_size": 20,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
GATE = "model.layers.0.mlp.gate_proj.weight"


@pytest.fixture
def folder(tmp_path):
    models.from_config(SIZES).to_huggingface(tmp_path)
    nn.clear_parameters()
    return tmp_path


def changed(folder, change):
    arrays = read_folder(folder, "test")
    arrays = {k: a.copy() for k, a in arrays.items()}
    change(arrays)
    write_folder(folder, arrays, 10**9)


def test_parameters_are_the_memory_of_the_file_in_its_types(folder):
    model = models.from_huggingface(folder)
    assert all(not v.data.read("host").flags.owndata for v in model.parameters().values())
    half = np.dtype(ml_dtypes.bfloat16)
    changed(folder, lambda arrays: arrays.update({GATE: arrays[GATE].astype(half)}))
    nn.clear_parameters()
    model = models.from_huggingface(folder)
    types = {k: v.spec.dtype.name for k, v in model.parameters().items()}
    assert types["layer1/gate/W"] == "bfloat16" and types["layer1/up/W"] == "float32"
    tokens = nn.Variable.from_numpy_array(np.array([[3, 4]]))
    y = model(tokens)
    y.forward()
    assert y.d.dtype == np.float32 and np.isfinite(y.d).all()
    model.to_huggingface(folder / "again")
    assert read_folder(folder / "again", "test")[GATE].dtype == half


T5 = {"model_type": "t5", "vocab_size": 20, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_heads": 2}


@pytest.mark.parametrize(
    "config, table, kept",
    [
        ({**SIZES, "tie_word_embeddings": True}, "model.embed_tokens.weight", "lm_head.weight"),
        ({**T5, "num_layers": 1}, "shared.weight", "encoder.embed_tokens.weight"),
        ({**T5, "num_layers": 1, "tie_word_embeddings": False}, "shared.weight",
         "decoder.embed_tokens.weight"),
    ],
)  # fmt: skip
def test_a_shared_table_may_have_any_of_its_names(config, table, kept, tmp_path):
    models.from_config(config).to_huggingface(tmp_path)
    nn.clear_parameters()
    want = models.from_huggingface(tmp_path).parameters()["tokens/W"].d.copy()
    changed(tmp_path, lambda arrays: arrays.update({kept: arrays.pop(table)}))
    nn.clear_parameters()
    found = models.from_huggingface(tmp_path).parameters()["tokens/W"].d
    np.testing.assert_array_equal(found, want)
    if config.get("tie_word_embeddings") is False:
        changed(tmp_path, lambda arrays: arrays.pop(kept))  # the head is no table then
        with pytest.raises(ValueError, match=f"1 tensors are missing: {table}"):
            models.from_huggingface(tmp_path)


def test_missing_and_extra_tensors_are_listed(folder):
    changed(folder, lambda arrays: [arrays.pop(GATE), arrays.pop("model.norm.weight")])
    with pytest.raises(ValueError, match=f"2 tensors are missing: {GATE}, model.norm.weight"):
        models.from_huggingface(folder)
    assert not nn.get_parameters(grad_only=False)
    more = {GATE: np.zeros((24, 16)), "model.norm.weight": np.zeros(16), "x.y": np.zeros(2)}
    changed(folder, lambda arrays: arrays.update(more))
    with pytest.raises(ValueError, match="1 tensors have no place in it: x.y"):
        models.from_huggingface(folder)
    changed(folder, lambda arrays: arrays.update({f"x.{i}": np.zeros(2) for i in range(9)}))
    with pytest.raises(ValueError, match=r"10 tensors have no place in it: x.0, .*, \.\.\.$"):
        models.from_huggingface(folder)


def test_another_shape_is_named(folder):
    changed(folder, lambda arrays: arrays.update({GATE: np.zeros((16, 24), np.float32)}))
    with pytest.raises(ShapeError, match=rf"{GATE} has the shape \(16, 24\), wanted \(24, 16\)"):
        models.from_huggingface(folder)


def test_a_head_that_is_written_again_is_not_read(folder):
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    names = models.from_huggingface(folder).parameters()
    assert "tokens/W" in names and "head/W" not in names


def test_names_without_the_prefix_are_those_of_a_network_without_head(folder):
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    arrays = read_folder(folder, "test")
    bare = {k.removeprefix("model."): a for k, a in arrays.items() if k != "lm_head.weight"}
    write_folder(folder, bare, 10**9)
    found = models.from_huggingface(folder).parameters()
    np.testing.assert_array_equal(found["layer1/gate/W"].d, bare[GATE.removeprefix("model.")])


def test_several_files_are_written_where_one_would_be_too_large(tmp_path):
    model = models.from_config(SIZES)
    model.to_huggingface(tmp_path, most_bytes=2000)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    want = {k: v.d.copy() for k, v in model.parameters().items()}
    nn.clear_parameters()
    for k, v in models.from_huggingface(tmp_path).parameters().items():
        np.testing.assert_array_equal(v.d, want[k])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model_type": "perceptron"}, "model_type 'perceptron', known are bert, .*, smollm3"),
        ({"model_type": None}, "model_type None, known are"),
        ({"hidden_size": None}, "config.json: hidden_size is missing"),
        ({"hidden_size": "16"}, "hidden_size is '16', wanted a whole number from 1 on"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, wanted a whole number"),
        ({"rms_norm_eps": "x"}, "rms_norm_eps is 'x', wanted a number"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1, wanted true or false"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish', wanted one of silu, "),
        ({"layer_types": ["linear_attention"] * 2}, "layer_types is .*, wanted full_attention"),
        ({"layer_types": ["full_attention"]}, "for each of 2 layers"),
        ({"layer_types": 3}, "layer_types is 3, wanted a list"),
        ({"rope_parameters": [1]}, r"rope_parameters is \[1\], wanted an object"),
        ({"sliding_window": -1}, "sliding_window is -1, wanted a whole number from 0 on"),
        ({"model_type": "smollm3", "no_rope_layers": [1]}, "no_rope_layers has 1 entries"),
        ({"rope_scaling": {"type": "spiral"}}, "rope_type is 'spiral', wanted one of default"),
        ({"rope_scaling": {"type": "linear"}}, "rope_parameters: factor is missing"),
        (
            {"rope_parameters": {"rope_type": "longrope", "short_factor": 3}},
            "short_factor is 3, wanted a list of numbers",
        ),
    ],
)
def test_what_a_config_says_wrong_is_named(change, text):
    with pytest.raises(ValueError, match=text):
        models.from_config({**SIZES, **change})


def test_a_config_that_asks_for_something_else_is_named():
    sizes = {"n_embd": 16, "n_head": 2, "n_layer": 1, "n_positions": 8, "vocab_size": 50}
    wrong = {"model_type": "gpt2", **sizes, "scale_attn_by_inverse_layer_idx": True}
    with pytest.raises(ValueError, match="inverse_layer_idx is True, only False is supported"):
        models.from_config(wrong)


def test_older_files_say_the_same_in_other_words():
    new = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}
    old = {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    found = [
        FAMILIES["llama"].read(models.huggingface.family.Config({**SIZES, **given}, "test"))
        for given in ({"rope_parameters": new}, old)
    ]
    assert found[0] == found[1]


def test_a_folder_without_config_is_named(tmp_path):
    with pytest.raises(ValueError, match="there is no .*config.json"):
        models.from_huggingface(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="config.json is no JSON"):
        models.from_huggingface(tmp_path)


def test_programs_that_cannot_be_are_named(tmp_path):
    model = models.from_config(SIZES)
    with pytest.raises(ValueError, match="batch 1, capacity 5000, chunk 64 and source 512, wanted"):
        model.save_program(tmp_path / "a.nnlp", capacity=5000)


def test_a_network_learns_and_what_it_learned_is_written(tmp_path):
    model = models.from_config(SIZES)
    tokens = nn.Variable.from_numpy_array(np.array([[3, 4, 5, 6]]))
    target = nn.Variable.from_numpy_array(np.array([[[4], [5], [6], [7]]]))
    loss = nn.functions.mean(nn.functions.softmax_cross_entropy(model(tokens), target, axis=2))
    solver = nn.solvers.Adam(0.02)
    solver.set_parameters(model.parameters())
    for _ in range(30):
        solver.zero_grad()
        loss.forward(clear_no_need_grad=True)
        loss.backward(clear_buffer=True)
        solver.update()
    assert loss.d < 0.05
    model.to_huggingface(tmp_path)
    nn.clear_parameters()
    again = models.from_huggingface(tmp_path)
    assert again.generate([3], 4) == [4, 5, 6, 7]


SIDE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SIDE |= {"intermediate_size": 24, "vocab_size": 20, "max_position_embeddings": 8}
SEEN = {**SIDE, "image_size": 16, "patch_size": 8}
FOLDERS = [
    {**SIZES, "rope_scaling": {"type": "yarn", "factor": 2.0}, "sliding_window": 4},
    {**SIZES, "model_type": "gemma3_text", "layer_types": ["full_attention"] * 2},
    {**SIZES, "model_type": "qwen2_moe", "num_experts": 4, "num_experts_per_tok": 2,
     "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8, "mlp_only_layers": [0]},
    {**SIDE, "model_type": "roberta", "architectures": ["RobertaForMaskedLM"], "pad_token_id": 1},
    {"model_type": "t5", "vocab_size": 20, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1,
     "num_heads": 2, "feed_forward_proj": "gated-gelu"},
    {"model_type": "clip", "vision_config": SEEN, "text_config": SIDE, "projection_dim": 8},
]  # fmt: skip
WRONG = [None, 0, -1, 3, 1.5, -0.5, "x", True, False, [], [1], {}, {"a": 1}, [[1]], float("nan")]


@pytest.mark.parametrize("seed", range(8))
def test_damaged_configs_are_networks_or_named(seed):
    rng = np.random.default_rng(seed)
    for trial in range(12):
        config = json.loads(json.dumps(FOLDERS[rng.integers(len(FOLDERS))]))
        place = config
        key = str(rng.choice(list(place)))
        while isinstance(place[key], dict) and rng.random() < 0.8:
            place = place[key]
            key = str(rng.choice(list(place)))
        place[key] = WRONG[rng.integers(len(WRONG))]
        with nn.parameter_scope(f"trial{trial}"):
            try:
                models.from_config(config)
            except ValueError as error:
                assert str(error), config
