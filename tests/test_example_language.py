# SPDX-License-Identifier: Apache-2.0
"""examples/language: a network that writes is trained, killed, taught to answer, and asked."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from nnl import models
from nnl.core.parameters.safetensors import read_header
from nnl.data.texts import open_texts

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "language"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(FOLDER.parent.parent)}


def command(script, *args):
    return [sys.executable, str(FOLDER / f"{script}.py"), *map(str, args)]


def run(script, *args):
    done = subprocess.run(command(script, *args), capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return done


QUICK = ("--quick", "--save-every", 4, "--steps")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a short run."""
    out = tmp_path_factory.mktemp("language")
    done = run("train", "--out", out, *QUICK, 40)
    assert "bits a byte" in done.stdout
    return out


def test_a_killed_run_goes_on_to_the_same_bits(trained, tmp_path):
    arguments = ("--out", tmp_path, *QUICK, 40)
    process = subprocess.Popen(command("train", *arguments), env=ENVIRONMENT)
    while not (tmp_path / "checkpoint.safetensors").is_file():
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert "going on after step" in run("train", *arguments).stderr
    name = "base/model.safetensors"
    assert (tmp_path / name).read_bytes() == (trained / name).read_bytes()


def test_it_learns_to_answer_and_talks(trained, tmp_path):
    few = (trained / "questions.jsonl").read_text().splitlines()[:8]
    questions = tmp_path / "questions.jsonl"
    questions.write_text("\n".join(few))
    options = ("--base", trained / "base", "--data", questions, "--steps", 8)
    done = run("tune", *options, "--out", tmp_path / "whole")
    assert re.search("answered word for word: [0-8] of 8", done.stdout)
    assert run("talk", "--base", tmp_path / "whole", "--max-tokens", 8, "What?").stdout

    adapter = tmp_path / "adapter"
    run("tune", *options, "--out", adapter, "--lora", 4)
    assert {p.name for p in adapter.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    talk = ("--base", trained / "base", "--adapter", adapter, "--max-tokens", 8)
    assert run("talk", *talk, "What?", "And?").stdout.count("\n") >= 2


def losses_of(path):
    data = np.fromfile(path, np.uint8)
    return json.loads(read_header(data, str(path))[1]["progress"])["losses"]


@pytest.mark.long
def test_training_takes_the_steps_of_pytorch(trained, monkeypatch):
    """The same losses, step by step: rows, gradients, clipping, schedule and decay."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(FOLDER)
    import learn

    steps, rate = 30, 3e-3
    theirs = transformers.AutoModelForCausalLM.from_pretrained(trained / "base")
    model = models.from_huggingface(trained / "base")

    class options:
        out, length, batch_size, learning_rate = trained, 64, 8, rate
        weight_decay, save_every, seed = 0.1, steps, 0

    options.steps = steps
    path = str(trained / "texts.jsonl")
    learn.learn(model, path, model.parameters(), options)
    ours = losses_of(trained / "checkpoint.safetensors")
    (trained / "checkpoint.safetensors").unlink()

    cosine = learn.CosineScheduler(rate, steps)
    schedule = learn.LinearWarmupScheduler(cosine, steps // 20)
    solver = torch.optim.AdamW(theirs.parameters(), rate, betas=(0.9, 0.95), weight_decay=0.1)
    with open_texts(path, model.lesson, 64, 8) as rows:
        for i in range(steps):
            solver.param_groups[0]["lr"] = schedule.get_learning_rate(i)
            tokens, labels, positions = (torch.tensor(x.astype(np.int64)) for x in rows.next())
            scores = theirs(tokens, position_ids=positions, use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())
            solver.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
            solver.step()
            assert abs(ours[i] - float(loss.detach())) < 1e-3, i
