# SPDX-License-Identifier: Apache-2.0
"""The C++ library writes on from tokens as Python does: examples/cpp/chat.cpp."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nnl as nn
from nnl import models
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
        text = "".join(" ".join(map(str, p)) + "\n" for p in prompts)
        command = [program, path, *map(str, options)]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        lines = [[int(t) for t in line.split()] for line in done.stdout.splitlines()]
        return lines, done.returncode, done.stderr

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


def test_what_is_drawn_depends_on_the_seed_and_is_probable(model, chat):
    _, path = model
    draws = [
        chat(path, PROMPTS[:1], "--most", 20, "--temperature", 2, "--seed", s)[0][0]
        for s in (1, 1, 2)
    ]
    assert draws[0] == draws[1] != draws[2]
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
    x = nn.Variable((2, 3))
    nn.save_program(tmp_path / "other.nnlp", {"y": x + 1}, {"x": x})
    assert "has no program 'read'" in chat(tmp_path / "other.nnlp", [[1]])[2]
