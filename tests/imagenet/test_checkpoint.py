# SPDX-License-Identifier: Apache-2.0
"""Runs that end in the middle go on bit by bit, whatever ended them; nothing is ever lost."""

import errno
import signal

import numpy as np
import pytest

from nnl.core.parameters.safetensors import read_header

# everything that is random or has a state, with drawn numbers that hit the middle of an epoch
EVERYTHING = (
    *("--accumulate", 2, "--mixup", 0.2, "--cutmix", 1, "--ema", 0.9, "--ema-every", 1),
    *("--warmup", 1, "--log-every", 1, "--no-export"),
)
MODES = ("static", "compile", "dynamic", "coexecute")


def everything_in(folder):
    """The arrays of a run's checkpoint."""
    data = np.fromfile(folder / "checkpoint.safetensors", np.uint8)
    entries, _ = read_header(data, "checkpoint")
    return {k: data[e.begin : e.end].tobytes() for k, e in entries.items()}


@pytest.mark.parametrize(
    ("mode", "type_config"),
    [
        *((m, "float") for m in ("static", "coexecute")),
        *(pytest.param(m, t, marks=pytest.mark.long) for m in MODES for t in ("float", "half")),
    ],
)
def test_a_run_that_stops_in_an_epoch_goes_on_bit_by_bit(start, tmp_path, mode, type_config):
    options = (*EVERYTHING, "--mode", mode, "--type-config", type_config)
    assert start(tmp_path / "whole", *options) == 0
    assert start(tmp_path / "parts", *options, "--steps", 2) == 0  # of three of an epoch
    assert start(tmp_path / "parts", *options, "--resume", "--workers", 1) == 0
    whole, parts = everything_in(tmp_path / "whole"), everything_in(tmp_path / "parts")
    assert any(k.startswith("average/") for k in whole)
    assert any(k.startswith("solver1/") for k in whole)
    assert whole == parts
    # losses, learning rates and steps too
    losses = [(tmp_path / run / "losses.tsv").read_text() for run in ("whole", "parts")]
    assert losses[0] == losses[1] and losses[0].count("\n") == 7


@pytest.mark.parametrize("mode", MODES)
def test_a_run_on_files_goes_on_with_another_number_of_workers(start, tmp_path, mode):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for part in ("train", "val"):
        for name in ("a", "b"):
            (tmp_path / "data" / part / name).mkdir(parents=True)
            for i in range(4):
                drawn = image.fromarray(rng.integers(0, 256, (40, 50, 3), np.uint8))
                drawn.save(tmp_path / "data" / part / name / f"{i}.jpg")
    options = ("--engine", "nnl", "--data", tmp_path / "data", "--batch-size", 2, "--mode", mode)
    options = (*options, "--no-export")
    assert start(tmp_path / "whole", *options, "--workers", 0) == 0
    assert start(tmp_path / "parts", *options, "--workers", 0, "--steps", 3) == 0
    assert start(tmp_path / "parts", *options, "--workers", 2, "--resume") == 0
    assert everything_in(tmp_path / "whole") == everything_in(tmp_path / "parts")


def test_sigterm_writes_a_checkpoint_to_go_on_from(script, start, tmp_path, monkeypatch, capsys):
    assert start(tmp_path / "whole", "--no-export") == 0
    step = script.train.Training.__call__

    def asked_to_end(training, pictures, labels, place, number):
        if place[1:3] == (1, 2):  # the third batch of the second epoch
            signal.raise_signal(signal.SIGTERM)
        return step(training, pictures, labels, place, number)

    monkeypatch.setattr(script.train.Training, "__call__", asked_to_end)
    assert start(tmp_path / "parts", "--no-export") == 128 + signal.SIGTERM
    assert "stopped at step 9, --resume goes on" in capsys.readouterr().out
    monkeypatch.setattr(script.train.Training, "__call__", step)
    assert start(tmp_path / "parts", "--no-export", "--resume") == 0
    assert everything_in(tmp_path / "whole") == everything_in(tmp_path / "parts")


def test_what_ends_validation_costs_no_training(script, start, tmp_path, monkeypatch, capsys):
    assert start(tmp_path / "whole", "--no-export") == 0

    def gone(*_):
        raise OSError("the pictures are gone")

    with monkeypatch.context() as m:
        m.setattr(script.train, "evaluate", gone)
        assert start(tmp_path / "parts", "--no-export") == 1
    capsys.readouterr()
    assert start(tmp_path / "parts", "--no-export", "--resume") == 0
    assert "epoch 1: loss" in capsys.readouterr().out
    assert everything_in(tmp_path / "whole") == everything_in(tmp_path / "parts")


def test_a_full_disk_keeps_the_checkpoint_before_and_the_run(
    script, start, tmp_path, monkeypatch, capsys
):
    assert start(tmp_path / "run", "--no-export", "--steps", 3) == 0
    before = everything_in(tmp_path / "run")
    save, tries = script.checkpoint.save, []

    def full(path, *rest):
        tries.append(path)
        if len(tries) < 5:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        save(path, *rest)

    monkeypatch.setattr(script.checkpoint, "save", full)
    # one that was due while training: a warning
    options = ("--no-export", "--resume", "--checkpoint-minutes", 0)
    assert start(tmp_path / "run", *options, "--steps", 5) == 1  # the last one has to be written
    said = capsys.readouterr().err
    assert "train.py: no checkpoint, the last one stays: [Errno 28] No space left" in said
    assert "train.py: error: [Errno 28] No space left on device" in said
    assert everything_in(tmp_path / "run") == before
    assert start(tmp_path / "run", *options) == 0
    assert start(tmp_path / "whole", "--no-export") == 0
    assert everything_in(tmp_path / "whole") == everything_in(tmp_path / "run")


def test_a_checkpoint_of_another_run_is_refused(start, tmp_path, capsys):
    run = tmp_path / "run"
    assert start(run, "--no-export", "--steps", 1) == 0
    before = everything_in(run)

    def refused(*options):
        assert start(run, "--no-export", *options) == 1
        return capsys.readouterr().err

    assert f"{run / 'checkpoint.safetensors'} is there: --resume to go on" in refused()
    assert "is of another run: --network was tiny, and is other now" in refused(
        "--network", "other", "--resume"
    )
    assert "is of another run: --batch-size was 4, and is 8 now" in refused(
        "--batch-size", 8, "--resume"
    )
    assert start(tmp_path / "other", "--resume") == 1
    assert "there is no checkpoint" in capsys.readouterr().err
    assert everything_in(run) == before
    path = run / "checkpoint.safetensors"
    assert "there is no parameter/stem/conv/W of the shape (64, 3, 7, 7) in it" in refused(
        "--evaluate", "--network", "resnet18", "--size", 32
    )
    whole = path.read_bytes()
    path.write_bytes(whole[:1000])
    assert "checkpoint.safetensors: " in refused("--resume")
    for name in (b"solver1/classifier/affine/b/m", b"progress"):
        path.write_bytes(whole.replace(name, name[:-1] + b"?"))
        assert ("there is no solver1" if name[:1] == b"s" else "is damaged") in refused("--resume")
    path.write_bytes(b"")
    assert "0 bytes are no safetensors file" in refused("--resume")
