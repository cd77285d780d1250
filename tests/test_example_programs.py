# SPDX-License-Identifier: Apache-2.0
"""The ten programs of examples/programs learn, and do what each of them is there for."""

import importlib
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import nnl as nn

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "programs"
ALL_MODES = ("eager", "coexecute")
MODES = ("coexecute", pytest.param("eager", marks=pytest.mark.long))
# steps, and the share of the first losses that the last ones are below
PROGRAMS = {
    "resnet50": (40, 0.5),
    "bert_qa": (30, 0.6),
    "yolov3": (12, 0.8),
    "dcgan": (25, 0.8),
    "gpt2": (40, 0.6),
    "bert_cls": (60, 0.4),
    "dropblock": (40, 0.6),
    "sdpoint": (60, 0.7),
    "faster_rcnn": (40, 0.7),
    "music_transformer": (40, 0.7),
}


TRACES = {"bert_cls": 3, "gpt2": 3, "sdpoint": 4, "faster_rcnn": 3}  # 2 of the others


def module(name):
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        if e.name == "sklearn":
            pytest.skip("needs scikit-learn")
        raise
    finally:
        sys.path.remove(str(FOLDER))


@cache
def run(name, mode="eager", steps=None, context="cpu"):
    program, steps = module(name).Program, steps or PROGRAMS[name][0]
    return module("common").train(program, mode=mode, steps=steps, context=context, every=1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_learns(name, mode):
    steps, share = PROGRAMS[name]
    losses = run(name, mode).losses
    assert len(losses) == steps and np.isfinite(losses).all()
    assert np.mean(losses[-5:]) < share * np.mean(losses[:5])
    if mode == "coexecute":
        report = run(name, mode).step.report()
        assert report.traces <= TRACES.get(name, 2)
        assert len(report.fallbacks) <= (name == "sdpoint")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_first_losses_are_those_of_the_numpy_backend(name, mode):
    first, second = run(name, mode).losses[:2]
    reference = run(name, steps=2, context="numpy").losses
    # batch normalisation of few pixels magnifies differences of rounding with every layer
    assert [first, second] == [
        pytest.approx(y, r) for y, r in zip(reference, (1e-3, 0.05), strict=True)
    ]


@pytest.mark.parametrize("mode", MODES)
def test_dropblock_keeps_less_in_every_step(mode):
    made = run("dropblock", mode).program
    drops = [b.drop for b in made.net.submodules.values() if hasattr(b, "drop")]
    done = (made.steps_done - 1) / made.fall
    assert {d.keep_prob for d in drops} == {1 - done * (1 - made.last_keep_prob)}
    drop = drops[0]
    drop.set_keep_prob(0.8)
    with nn.auto_forward():
        y = drop(nn.Variable.from_numpy_array(np.ones((64, 4, 9, 9), np.float32))).d
    assert y.mean() == pytest.approx(1, abs=1e-5)
    # algorithm 1 takes squares for disjoint: where they overlap, less is dropped
    assert 0.8 <= (y > 0).mean() < 0.85
    rows = (y == 0).astype(int)  # a zero is never alone: squares of 3
    beside = sum(np.roll(rows, s, axis=a) for s in (1, -1) for a in (2, 3))
    assert (beside[..., 1:-1, 1:-1][rows[..., 1:-1, 1:-1] == 1] >= 2).all()


@pytest.mark.parametrize("mode", MODES)
def test_sdpoint_shrinks_maps_behind_the_block_it_has_drawn(mode):
    made = run("sdpoint", mode).program
    made.net.training = False
    sides = {}
    for point in ("stage1_block3", "stage2_block4", None):
        made.net.stochastic_downsampling(point)
        ratios = {n: b.downsampling_ratio for n, b in made.net.submodules.items()}
        assert {n for n, r in ratios.items() if r < 1} == {point} - {None}
        h = nn.Variable((2, 32, 12, 12))
        sides[point] = made.net.submodules["stage1_block3"](h).shape[2]
    assert sides == {"stage1_block3": 6, "stage2_block4": 12, None: 12}


@pytest.mark.parametrize("mode", MODES)
def test_bert_cls_is_scored_in_every_step(mode):
    scores = run("bert_cls", mode).program.scores
    assert len(scores) == 60 and max(scores[:2]) < 1 and np.mean(scores[-5:]) > 0.9


@pytest.mark.parametrize("mode", MODES)
def test_faster_rcnn_keeps_as_many_proposals_as_are_left(mode):
    kept = run("faster_rcnn", mode).program.kept
    assert len(set(kept)) > 3 and max(kept) <= module("faster_rcnn").AFTER


@pytest.mark.parametrize("mode", MODES)
def test_music_transformer_writes_its_loss_to_an_attribute(mode):
    found = run("music_transformer", mode)
    model = found.program.model
    assert [float(h.d) for h in model.history] == found.losses
    assert model.loss_value.d.mean() == pytest.approx(found.losses[-1])
    first, second, *_ = (look.d for look in model.looks)
    assert not np.array_equal(first, second)
    np.testing.assert_allclose([first.sum(3), second.sum(3)], 1, rtol=1e-5)


def test_relative_scores_are_moved_to_their_columns():
    skewed = module("music_transformer").skewed
    x = np.random.default_rng(0).normal(size=(2, 3, 5, 5)).astype(np.float32)
    with nn.auto_forward():
        y = skewed(nn.Variable.from_numpy_array(x)).d
    for i in range(5):
        for j in range(i + 1):  # the last column is of distance 0; what lies above is masked
            np.testing.assert_array_equal(y[:, :, i, j], x[:, :, i, 4 - (i - j)])


def command(*args):
    environment = {**os.environ, "PYTHONPATH": str(FOLDER.parent.parent)}
    line = [sys.executable, str(FOLDER / "gpt2.py"), *args]
    return subprocess.run(line, capture_output=True, text=True, env=environment)


def test_the_command_reports_losses_and_speed_and_gpt2_writes():
    done = command("--steps", "4", "--every", "3")
    assert done.returncode == 0, done.stderr
    first, second, speed, written = done.stdout.splitlines()
    assert first.startswith("step     3  loss ") and second.startswith("step     4  loss ")
    assert speed.startswith("gpt2, small, eager: 4 steps in ") and "tokens a second" in speed
    assert len(written.split()) == 1 + 1 + 20


def test_numbers_that_make_no_sense_are_named():
    done = command("--steps", "0")
    assert done.returncode == 2 and "--steps is 0, wanted at least 1" in done.stderr


@pytest.mark.parametrize("steps", [3, pytest.param(50, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_co_execution_changes_no_bit(name, steps):
    # the numpy backend fuses nothing
    eager, found = (run(name, mode, steps=steps, context="numpy") for mode in ALL_MODES)
    assert eager.losses == found.losses
    # what sklearn has said, how many proposals numpy has kept, what was written to attributes
    for fact in ("scores", "kept", "steps_done"):
        assert getattr(eager.program, fact, None) == getattr(found.program, fact, None)
    if name == "music_transformer":
        assert [float(h.d) for h in found.program.model.history] == found.losses
