# SPDX-License-Identifier: Apache-2.0
"""The C++ library writes on and answers as Python does: examples/cpp/chat.cpp."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ml_dtypes import bfloat16

import nnl as nn
from nnl import models
from nnl.ext_utils import get_extension_context
from nnl.models.generation.sampling import Sampling
from nnl.serving.program import ProgramRows
from tests.models.texts import write_folder
from tests.native.test_cpp_library import installed

ROOT = Path(__file__).resolve().parents[2]
SIZES = {
    "model_type": "llama", "vocab_size": 60, "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}  # fmt: skip
PROMPTS = ([5, 6, 7], [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16], [5, 6], [40] * 20)


@pytest.fixture(scope="module", params=[0, 8])
def model(request, tmp_path_factory):
    """A network with weights of float32 or 8 bits, and its file."""
    with nn.parameter_scope(f"chat{request.param}"):
        made = models.from_config(SIZES)
        rng = np.random.default_rng(0)
        for v in made.parameters().values():
            if v.ndim == 2:
                v.d = rng.normal(size=v.shape) * 0.3
        if request.param:
            made.quantize(request.param)
    path = tmp_path_factory.mktemp("chat") / "model.nnlp"
    made.save_program(path, capacity=48, chunk=8)
    return made, path


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    installed()
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    program = tmp_path_factory.mktemp("bin") / "chat"
    flags = [Path(sys.executable).with_name("nnl"), "cpp-flags"]
    found = subprocess.run(flags, capture_output=True, text=True, check=True).stdout.split()
    source = ROOT / "examples/cpp/chat.cpp"
    subprocess.run(
        ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", source, *found, "-o", program],
        check=True,
    )

    def run(path, prompts, *options):
        is_text = all(isinstance(p, str) for p in prompts)
        lines = "".join((p if is_text else " ".join(map(str, p))) + "\n" for p in prompts)
        command = [program, path, *map(str, options), *([] if is_text else ["--tokens"])]
        done = subprocess.run(command, input=lines.encode(), capture_output=True, check=False)
        out, error = done.stdout.decode(), done.stderr.decode()
        if is_text:
            return out, done.returncode, error
        return [[int(t) for t in line.split()] for line in out.splitlines()], done.returncode, error

    return run


def test_it_writes_what_python_writes(model, chat):
    made, path = model
    want = [made.generate(p, 12) for p in PROMPTS]
    found, code, _ = chat(path, PROMPTS, "--most", 12)
    assert code == 0 and found == want
    end = want[0][5]
    found, _, _ = chat(path, PROMPTS[:1], "--most", 12, "--end", end)
    assert found == [want[0][: want[0].index(end)]]
    (found,), _, _ = chat(path, [[1] * 40], "--most", 30)
    assert len(found) == 8  # the caches are full


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_texts_side_by_side_are_what_each_is_alone(model, chat, tmp_path, batch):
    made, _ = model
    path = tmp_path / "side.nnlp"
    made.save_program(path, batch=batch, capacity=48, chunk=8)
    prompts = [*PROMPTS, [1] * 40, *PROMPTS[::-1]]  # the fifth fills its caches and ends early
    want = [made.generate(p, min(12, 48 - len(p))) for p in prompts]
    assert chat(path, prompts, "--most", 12, "--together")[0] == want
    assert chat(path, PROMPTS[1:], "--most", 12)[0] == want[1:4]  # one after the other
    end = want[0][5]
    cut = [w[: w.index(end)] if end in w else w for w in want]
    assert chat(path, prompts, "--most", 12, "--end", end, "--together")[0] == cut
    how = ("--most", 12, "--temperature", 2, "--seed", 3)
    drawn = chat(path, prompts, *how, "--together")[0]
    assert chat(path, prompts[:2], *how, "--together")[0] == drawn[:2] != want[:2]
    assert chat(path, prompts[:1], *how)[0] == drawn[:1]


@pytest.mark.parametrize("precision", ["float", "bfloat16"])
def test_weights_of_16_bits_are_read_as_they_are(model, chat, tmp_path, precision):
    made, _ = model
    if "layer1/attention/q/codes" in made.parameters():
        pytest.skip("its weights have 8 bits")
    with nn.parameter_scope(f"narrow{precision}"):
        small = models.from_config(SIZES)
    for k, v in small.parameters().items():
        v.d = made.parameters()[k].d
        v.data.cast(bfloat16)
    with nn.context_scope(get_extension_context("cpu", type_config=precision)):
        small.save_program(tmp_path / "small.nnlp", capacity=48, chunk=8)
        want = small.generate(PROMPTS[0], 12)
    assert chat(tmp_path / "small.nnlp", PROMPTS[:1], "--most", 12)[0] == [want]


@pytest.mark.parametrize("batch", [1, 2])
def test_it_answers_with_an_encoder_as_python_does(chat, tmp_path, batch):
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    with nn.parameter_scope("answers"):
        made = models.from_config({
            "model_type": "t5", "vocab_size": 600, "decoder_start_token_id": 300, **sizes
        })  # fmt: skip
        rng = np.random.default_rng(0)
        for v in made.parameters().values():
            v.d = v.d + rng.normal(size=v.shape) * 0.4
    path = tmp_path / "t5.nnlp"
    made.save_program(path, batch=batch, capacity=16, chunk=4, source=20)
    prompts = [[599, *p] for p in PROMPTS if len(p) < 20] + [[7], [5] * 20]
    want = [made.generate(p, 9) for p in prompts]
    assert len({*map(tuple, want)}) == len(want)
    assert chat(path, prompts, "--most", 9, "--together")[0] == want
    assert chat(path, prompts[::-1], "--most", 9)[0] == want[::-1]
    (found,), _, _ = chat(path, prompts[:1], "--most", 30)
    assert len(found) == 15  # the caches are full
    assert "the prompt has 21 tokens, wanted 1 to 20" in chat(path, [[1] * 21])[2]
    with pytest.raises(ValueError, match="answers a text; wanted one that writes on"):
        ProgramRows(path)
    with pytest.raises(ValueError, match="chunk 4 and source 0, wanted at least 1"):
        made.save_program(path, chunk=4, source=0)


def found_scores(made, prompt):
    y = made(nn.Variable.from_numpy_array(np.array([prompt])))
    y.forward()
    return y.d[0, -1]


def test_what_is_drawn_depends_on_the_seed_and_is_probable(model, chat):
    _, path = model
    draws = [
        chat(path, PROMPTS[:1], "--most", 20, "--temperature", 2, "--seed", s)[0][0]
        for s in (1, 1, 2)
    ]
    assert draws[0] == draws[1] != draws[2]
    scores = found_scores(model[0], PROMPTS[0])
    likely = np.flatnonzero(Sampling(temperature=2, top_p=0.5).probabilities(scores, PROMPTS[0]))
    options = ("--most", 1, "--temperature", 2, "--top-p", 0.5, "--seed")
    first = {chat(path, PROMPTS[:1], *options, s)[0][0][0] for s in range(15)}
    assert 1 < len(first) and first <= {*likely} and len(likely) < 40
    best = chat(path, PROMPTS[:1], "--most", 12)[0]
    drawn = chat(path, PROMPTS[:1], "--most", 12, "--temperature", 3, "--top-p", 1e-6)[0]
    assert drawn == best


def test_what_it_cannot_is_told(model, chat, tmp_path):
    _, path = model
    for prompt, options, text in (
        ([], (), "the prompt has 0 tokens, wanted 1 to 47"),
        ([1] * 48, (), "the prompt has 48 tokens, wanted 1 to 47"),
        ([60], (), "the prompt has the token 60, wanted 0 to 59"),
        ([1], ("--most", 0), "most is 0, wanted 1 or more"),
        ([1], ("--temperature", -1), "temperature is -1.000000, wanted at least 0"),
    ):
        _, code, error = chat(path, [prompt], *options)
        assert code == 1 and f"Generator: {text}" in error
    assert f"Generator: {path} has no tokenizer" in chat(path, ["the cat"])[2]
    x = nn.Variable((2, 3))
    nn.save_program(tmp_path / "other.nnlp", {"y": x + 1}, {"x": x})
    assert "has no program 'read'" in chat(tmp_path / "other.nnlp", [[1]])[2]
    nn.save_program(tmp_path / "closed.nnlp", programs={"read": ({"scores": x + 1}, {"tokens": x})})
    text = "takes tokens float32[2, 3], wanted any number of them of each text, as save_program"
    assert text in chat(tmp_path / "closed.nnlp", [[1]])[2]


@pytest.fixture
def folder(tmp_path):
    with nn.parameter_scope(f"talks{tmp_path.name}"):
        write_folder(tmp_path)
    return tmp_path


def saved(folder):
    with nn.parameter_scope(f"saved{folder.name}"):
        model = models.from_huggingface(folder)
    model.save_program(folder / "model.nnlp", capacity=128, chunk=8)
    return model


def test_it_writes_texts_as_python_does(folder, chat):
    model = saved(folder)
    prompts = ["the cat", "Größe und 3 × 4, 日本語", "🙂"]
    found, code, _ = chat(folder / "model.nnlp", prompts, "--write", "--most", 14)
    assert code == 0
    assert found == "".join(model.generate(p, 14) + "\n" for p in prompts)
    model.save_program(folder / "side.nnlp", batch=2, capacity=128, chunk=8)
    assert chat(folder / "side.nnlp", prompts, "--write", "--most", 14, "--together")[0] == found


def test_it_talks_as_python_does(folder, chat):
    model = saved(folder)
    talk, want = [{"role": "system", "content": "the"}], ""
    for said in ("é", " 4 "):  # the template trims messages
        talk.append({"role": "user", "content": said})
        want += model.chat(talk, 6) + "\n"
        talk.append({"role": "assistant", "content": model.chat(talk, 6)})
    options = ("--most", 6, "--system", "the")
    assert chat(folder / "model.nnlp", ["é", " 4 "], *options)[0] == want


def test_conversations_that_it_does_not_know_are_told(folder, chat):
    template = folder / "chat_template.jinja"
    template.write_text(
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('none') }}"
        "{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    )
    model = saved(folder)
    path = folder / "model.nnlp"
    want = model.chat([{"role": "user", "content": "a"}], 5) + "\n"
    assert chat(path, ["a"], "--most", 5) == (want, 0, "")
    _, code, error = chat(path, ["a"], "--system", "be kind")
    assert code == 1 and "knows no messages of the role 'system'" in error
    template.write_text("{{ messages | length }}")
    saved(folder)
    _, code, error = chat(path, ["a"])
    assert code == 1 and "is not one of words around messages: give write() the whole" in error
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["pre_tokenizer"] = {"type": "Whitespace"}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    saved(folder)
    _, code, error = chat(path, ["a"], "--write")
    assert code == 1 and "the pre_tokenizer Whitespace is not known, wanted ByteLevel" in error
