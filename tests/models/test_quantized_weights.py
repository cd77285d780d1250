# SPDX-License-Identifier: Apache-2.0
"""Networks whose weights have 4 or 8 bits: rounded here, packed by others, from GGUF."""

from __future__ import annotations

import io
import json

import gguf
import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl import models
from nnl.core.parameters.safetensors import save
from tests.converters.test_weight_groups import words
from tests.models import texts

SIZES = {
    "model_type": "llama", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}  # fmt: skip


def model(seed=0, **more):
    """A network that has drawn larger weights than networks begin with."""
    made = models.from_config({**SIZES, **more})
    rng = np.random.default_rng(seed)
    for v in made.parameters().values():
        if v.ndim == 2:
            v.d = rng.normal(size=v.shape) * 0.2
    return made


def scores(made, ids=None):
    ids = np.random.default_rng(1).integers(0, 96, (2, 9)) if ids is None else ids
    y = made(nn.Variable.from_numpy_array(ids))
    y.forward()
    return y.d.copy()


def difference(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


@pytest.mark.parametrize("bits, group_size, symmetric", [
    (8, 32, False), (8, 64, True), (4, 32, False), (4, 32, True),
])  # fmt: skip
@pytest.mark.parametrize("tied", [False, True])
def test_scores_are_those_of_the_rounded_weights(bits, group_size, symmetric, tied):
    made = model(tie_word_embeddings=tied, intermediate_size=64)
    before = {k: v.d.copy() for k, v in made.parameters().items()}
    errors = made.quantize(bits, group_size, symmetric)
    assert set(errors) == {
        *(f"layer{i}/{p}" for i in (1, 2) for p in ("gate", "up", "down")),
        *(f"layer{i}/attention/{p}" for i in (1, 2) for p in ("q", "k", "v", "out")),
        "tokens" if tied else "head",
    }
    assert max(errors.values()) < (0.01 if bits == 8 else 0.15)
    after = made.parameters()
    assert after["layer1/up/codes"].d.dtype == np.uint8 and "layer1/up/W" not in after
    np.testing.assert_array_equal(after["tokens/W"].d, before["tokens/W"])
    found = scores(made)
    with nn.parameter_scope("rounded"):
        plain = model(tie_word_embeddings=False, intermediate_size=64)
        values = plain.parameters()
        for path, v in values.items():
            name = "tokens" if tied and path == "head/W" else path.removesuffix("/W")
            if f"{name}/codes" in after and path != "tokens/W":
                parts = [after.get(f"{name}/{part}") for part in ("codes", "scale", "offset")]
                given = {"bits": bits, "group_size": group_size}
                v.d = F.dequantize_groups(*(p and p.data for p in parts), **given).data
            else:
                v.d = before[path]
        assert difference(found, scores(plain)) < 0.05  # activations of 8 bits


def test_what_is_written_by_programs_is_what_generate_writes(tmp_path):
    made = model()
    prompt = [5, 6, 7, 8]
    made.generate(prompt, 4)  # programs of the weights that were there before
    made.quantize(8)
    found = made.generate(prompt, 6)
    ids = list(prompt)
    for token in found:
        assert scores(made, np.array([ids]))[0, -1].argmax() == token
        ids.append(token)
    made.save_program(tmp_path / "m.nnlp", capacity=32, chunk=8)
    tokens = np.zeros((1, 8), np.int64)
    tokens[0, :4] = prompt
    program = nn.load_program(tmp_path / "m.nnlp")
    y = program.run("read", tokens=tokens, before=[0], counts=[4])["scores"]
    assert y.argmax() == found[0]


def test_calibration_is_better_on_what_it_has_seen():
    rng = np.random.default_rng(2)
    ids = rng.integers(0, 12, (40, 24))  # few tokens: inputs depend on each other
    found = []
    for calibration in ((), ids.tolist()):
        with nn.parameter_scope(f"with-{len(calibration)}"):
            made = model()
            want = scores(made, ids)
            made.quantize(4, calibration=calibration)
            found.append(difference(scores(made, ids), want))
    assert found[1] < 0.8 * found[0]


@pytest.mark.parametrize("tied", [False, True])
def test_a_network_of_two_stacks(tied):
    made = models.from_config({
        "model_type": "t5", "vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64,
        "num_layers": 2, "num_heads": 4, "tie_word_embeddings": tied,
    })  # fmt: skip
    rng = np.random.default_rng(0)
    for v in made.parameters().values():
        if v.ndim == 2:
            v.d = rng.normal(size=v.shape) * 0.1
    ids = [nn.Variable.from_numpy_array(rng.integers(0, 64, (2, 7))) for _ in range(2)]
    values = []
    for step in (lambda: None, lambda: made.quantize(8)):
        step()
        y = made(*ids)
        y.forward()
        values.append(y.d.copy())
    assert "reader/distances/W" in made.parameters() and "head/W" not in made.parameters()
    assert 0 < difference(values[1], values[0]) < 0.03


def test_layers_that_are_skipped_or_do_not_fit(tmp_path):
    made = model(intermediate_size=80)
    with pytest.raises(ValueError, match="quantize: layer1/down has 80 columns, wanted a multiple"):
        made.quantize()
    assert "layer1/gate/W" in made.parameters()
    errors = made.quantize(skip="/down$|^head$")
    assert "head" not in errors and "layer1/down/W" in made.parameters()
    for given, text in (
        ({"bits": 3}, "bits is 3, wanted 4 or 8"),
        ({"skip": "("}, r"skip is '\(', which is no pattern"),
        ({"calibration": [[5], []]}, "text 1 of the calibration has 0 tokens, wanted 1 to 64"),
        ({"calibration": [[1] * 65]}, "text 0 of the calibration has 65 tokens, wanted 1 to 64"),
        ({"calibration": [[5, 96]]}, "text 0 of the calibration has the token 96, wanted 0 to 95"),
    ):
        with pytest.raises(ValueError, match=f"quantize: {text}"):
            made.quantize(**given)
    with pytest.raises(ValueError, match="to_huggingface: 12 layers are quantized"):
        made.to_huggingface(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


# ---- GPTQ and AWQ ----


def packed_folder(path, method, bits=4, size=32, mixed=False, **settings):
    """A checkpoint with packed layers, and the network with the weights that they stand for."""
    made = model()
    arrays = made.family.save(made.config, {k: v.d for k, v in made.parameters().items()})
    rng = np.random.default_rng(3)
    for name in [n for n in arrays if n.endswith("proj.weight")]:
        rows, columns = arrays[name].shape
        codes = rng.integers(0, 2**bits, (columns, rows))
        zeros = rng.integers(1, 2**bits, (columns // size, rows))
        scale = rng.uniform(0.005, 0.03, zeros.shape).astype(np.float16)
        real = np.repeat(scale.astype(np.float32), size, 0) * (codes - np.repeat(zeros, size, 0))
        arrays[name] = np.ascontiguousarray(real.T, np.float32)
        stem = name.removesuffix("weight")
        if mixed:  # as desc_act has it
            places = rng.permutation(columns)
            codes, arrays[name] = codes[places], np.ascontiguousarray(arrays[name][:, places])
        if method == "gptq":
            parts = words(codes, 0, bits), words(zeros - 1, 1, bits)
            of = np.arange(columns) // size
            arrays[f"{stem}g_idx"] = (of[places] if mixed else of).astype(np.int32)
        else:
            order = (0, 2, 4, 6, 1, 3, 5, 7)
            parts = words(codes, 1, 4, order), words(zeros, 1, 4, order)
        arrays |= {f"{stem}qweight": parts[0], f"{stem}qzeros": parts[1], f"{stem}scales": scale}
    whole = {k: v for k, v in arrays.items() if k.split(".")[-1] in ("weight",)}
    few = {k: v for k, v in arrays.items() if not k.endswith("proj.weight")}
    path.mkdir()
    few = {k: np.ascontiguousarray(v) for k, v in few.items()}
    save(path / "model.safetensors", few, {})
    how = {"quant_method": method, "bits": bits, "group_size": size, **settings}
    (path / "config.json").write_text(json.dumps({**SIZES, "quantization_config": how}))
    made.load(whole)
    return made


@pytest.mark.parametrize(
    "method, bits, mixed",
    [("gptq", 4, False), ("gptq", 8, False), ("gptq", 4, True), ("awq", 4, False)],
)
def test_packed_checkpoints(method, bits, mixed, tmp_path):
    want = scores(packed_folder(tmp_path / "m", method, bits, mixed=mixed))
    with nn.parameter_scope("packed"):
        found = models.from_huggingface(tmp_path / "m")
        assert difference(scores(found), want) < 0.05  # activations of 8 bits
        assert found.parameters()["layer2/gate/codes"].d.nbytes == 96 * 64 * bits // 8
        text, want = found.generate([5, 6, 7], 6), scores(found)
        found.save_program(tmp_path / "m.nnlp", capacity=16, chunk=8)
        tokens = np.array([[5, 6, 7, 0, 0, 0, 0, 0]])
        program = nn.load_program(tmp_path / "m.nnlp")
        y = program.run("read", tokens=tokens, before=[0], counts=[3])["scores"]
        assert y.argmax() == text[0]
        found.lora(2)
        found.merge()  # weights again, in the order of the columns
        assert difference(scores(found), want) < 0.05


def test_packed_checkpoints_that_are_wrong(tmp_path):
    packed_folder(tmp_path / "m", "gptq")
    file = tmp_path / "m" / "config.json"
    config = json.loads(file.read_text())
    for how, text in (
        ({"quant_method": "hqq", "bits": 4}, "quant_method 'hqq' and 4 bits, wanted gptq or awq"),
        ({"quant_method": "gptq", "bits": 3}, "and 3 bits, wanted gptq or awq, and 4 or 8"),
        ({"quant_method": "gptq", "bits": 8}, "_proj: qweight, qzeros and scales do not fit"),
        ("gptq", "quant_method None"),
    ):
        file.write_text(json.dumps({**config, "quantization_config": how}))
        with nn.parameter_scope("wrong"), pytest.raises(ValueError, match=text):
            models.from_huggingface(tmp_path / "m")


# ---- GGUF ----

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip


def write_gguf(path, made, kind, tokenizer=None, template=None, more=lambda writer: None):
    """What llama.cpp's converter would write of a Llama."""
    c = {**SIZES, **made.source}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(16)
    writer.add_eos_token_id(2)
    if tokenizer:
        vocabulary = tokenizer.get_vocab()
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(sorted(vocabulary, key=vocabulary.get))
        merges = json.loads(tokenizer.to_str())["model"]["merges"]
        writer.add_token_merges([" ".join(m) for m in merges])
        writer.add_token_types([3, 3, 3] + [1] * (len(vocabulary) - 3))
        writer.add_chat_template(template)
    more(writer)
    arrays = made.family.save(made.config, {k: v.d for k, v in made.parameters().items()})
    for name, value in arrays.items():
        stem = name.removesuffix(".weight")
        block, _, rest = stem.removeprefix("model.layers.").partition(".")
        there = NAMES.get(stem) or f"blk.{block}.{NAMES[rest]}"
        for part, heads in (("attn_q", 4), ("attn_k", 2)):  # pairs of turned columns side by side
            if there.endswith(part):
                shape = (heads, 2, len(value) // heads // 2, *value.shape[1:])
                value = value.reshape(shape).swapaxes(1, 2).reshape(value.shape)
        value = np.ascontiguousarray(value, np.float32)
        if value.ndim == 2 and kind != "F32":
            of = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(f"{there}.weight", gguf.quants.quantize(value, of), raw_dtype=of)
        else:
            writer.add_tensor(f"{there}.weight", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q5_1", "Q4_0"])
@pytest.mark.parametrize("tied", [False, True])
def test_gguf(kind, tied, tmp_path):
    made = model(tie_word_embeddings=tied)
    write_gguf(tmp_path / "m.gguf", made, kind)
    if kind != "F32":
        of = gguf.GGMLQuantizationType[kind]
        for v in made.parameters().values():
            if v.ndim == 2:
                v.d = gguf.quants.dequantize(gguf.quants.quantize(v.d, of), of)
    want, most = scores(made), 1e-4 if kind.startswith("F") else 0.05
    with nn.parameter_scope("read"):
        found = models.from_gguf(tmp_path / "m.gguf")
        assert difference(scores(found), want) < most
        assert found.config.tied == tied and found.writer.ends == (2,)
        if kind == "Q4_0":
            size = found.parameters()["tokens/codes" if tied else "head/codes"].d.nbytes
            assert size == 96 * 64 // 2


def test_the_text_of_a_gguf(tmp_path):
    tokenizer = texts.tokenizer()
    made = model(vocab_size=320)
    write_gguf(tmp_path / "m.gguf", made, "F32", tokenizer, texts.CHAT)
    with nn.parameter_scope("read"):
        found = models.from_gguf(tmp_path / "m.gguf")
        for line in [*texts.TEXTS, "<s>the cat</s>", "  two  spaces\n\n"]:
            tokens = found.text.encode(line)
            assert tokens == tokenizer.encode(line).ids
            assert found.text.decode(tokens) == tokenizer.decode(tokens)
        assert isinstance(found.generate("the cat", 3), str)
        talk = [{"role": "user", "content": "the cat"}]
        assert found.text.conversation(talk) == "<user>the cat</s>\n<assistant>"


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"short_factor": [1.0, 1.2] * 4, "long_factor": [2.0, 3.0] * 4}


def llama3_freqs(base=10000.0, width=16, before=16):
    """The tensor that convert_hf_to_gguf.py of llama.cpp writes for LLAMA3."""
    found = []
    for i in range(0, width, 2):
        length = 2 * np.pi * base ** (i / width)
        smooth = (before / length - 1.0) / (4.0 - 1.0)
        mild = 1 / ((1 - smooth) / 8.0 + smooth)
        found.append(1 if length < before / 4 else 8 if length > before / 1 else mild)
    return np.float32(found)


def scaled(kind, factor, before, **more):
    def add(writer):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(factor)
        writer.add_rope_scaling_orig_ctx_len(before)
        writer.add_eot_token_id(5)  # of turns
        if "attention" in more:
            writer.add_rope_scaling_attn_factors(more["attention"])

    return add


def long_ropes(writer):
    scaled("longrope", 1.0, 16, attention=1.1)(writer)
    for part in ("long", "short"):
        writer.add_tensor(f"rope_factors_{part}.weight", np.float32(LONG[f"{part}_factor"]))


@pytest.mark.parametrize(
    "scaling, add",
    [
        (LLAMA3, lambda writer: writer.add_tensor("rope_freqs.weight", llama3_freqs())),
        ({"rope_type": "linear", "factor": 4.0}, scaled("linear", 4.0, 16)),
        ({"rope_type": "yarn", "factor": 4.0}, scaled("yarn", 4.0, 16)),
        (
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "attention_factor": 2 * (0.1 * float(np.log(4)) + 1),
            },
            scaled("yarn", 4.0, 16, attention=2.0),
        ),
        ({"rope_type": "longrope", "attention_factor": 1.1, **LONG}, long_ropes),
    ],
)
def test_rotary_positions_of_a_gguf_are_scaled(scaling, add, tmp_path):
    before = {"original_max_position_embeddings": 16}
    made = model(rope_scaling={**scaling, **before}, **before)
    write_gguf(tmp_path / "m.gguf", made, "F32", more=add)
    with nn.parameter_scope("read"):
        found = models.from_gguf(tmp_path / "m.gguf")
        assert found.writer.ends == ((2,) if scaling is LLAMA3 else (2, 5))
        for length in (9, 40):
            ids = np.random.default_rng(1).integers(0, 96, (2, length))
            assert difference(scores(found, ids), scores(made, ids)) < 1e-5


def test_the_pieces_of_a_gguf_are_those_of_sentencepiece(tmp_path):
    spm = pytest.importorskip("sentencepiece")
    file = io.BytesIO()
    lines = [line for text in texts.TEXTS for line in [text] * 5]
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=file, model_type="bpe", vocab_size=400,
        byte_fallback=True, normalization_rule_name="identity", hard_vocab_limit=False,
        remove_extra_whitespaces=False, minloglevel=2, character_coverage=0.99,
    )  # fmt: skip
    theirs = spm.SentencePieceProcessor(model_proto=file.getvalue())
    ids = range(theirs.get_piece_size())

    def add(writer):
        writer.add_tokenizer_model("llama")
        writer.add_token_list([theirs.id_to_piece(i) for i in ids])
        writer.add_token_scores([theirs.get_score(i) for i in ids])
        writer.add_token_types([
            2 if theirs.is_unknown(i) else 3 if theirs.is_control(i) else 6 if theirs.is_byte(i)
            else 1 for i in ids
        ])  # fmt: skip
        writer.add_bos_token_id(1)

    made = model(vocab_size=len(ids))
    write_gguf(tmp_path / "m.gguf", made, "F32", more=add)
    with nn.parameter_scope("read"):
        found = models.from_gguf(tmp_path / "m.gguf")
    for line in [*texts.TEXTS, "  two  blanks ", "a\n\tb", "🙂🙃 x", "the mat and the cat", "Ä"]:
        tokens = found.text.encode(line)
        assert tokens == [1, *theirs.encode(line)], line
        assert found.text.decode(tokens) == theirs.decode(tokens[1:])


def test_gguf_that_is_not_read(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match="general.architecture is 'mamba', known are llama, qwen2"):
        models.from_gguf(tmp_path / "m.gguf")
    made = model()
    write_gguf(tmp_path / "m.gguf", made, "F32", more=scaled("longrope", 4.0, 16))
    with pytest.raises(ValueError, match="rope.scaling.type is 'longrope', wanted none, linear, y"):
        models.from_gguf(tmp_path / "m.gguf")
