# SPDX-License-Identifier: Apache-2.0
"""nnl train: files, events, checkpoints, early ends, errors."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.cli.main import main
from nnl.training.trainer import STOP, SUSPEND, Trainer
from nnl.utils.load import load
from tests.cli.training_files import (
    BATCH,
    ROWS,
    affine,
    normalized,
    write_rows,
    write_training_file,
)

STEPS = ROWS // BATCH


def train(config: Path, out: Path, *options: object, code: int = 0) -> list[dict[str, Any]]:
    """Train; the events."""
    nn.clear_parameters()
    events = out.parent / f"{out.name}.jsonl"
    args = ["train", "-c", config, "-o", out, "--events", events, *options]
    assert main([str(a) for a in args]) == code
    return [json.loads(line) for line in events.read_text().splitlines()]


def losses(events: list[dict[str, Any]]) -> list[float]:
    return [e["loss"] for e in events if e["event"] == "step_after"]


def parameters(path: Path) -> dict[str, Any]:
    nn.clear_parameters()
    nn.load_parameters(path)
    return {k: v.d.copy() for k, v in nn.get_parameters(grad_only=False).items()}


def test_a_file_trains_as_a_script_does(tmp_path: Path) -> None:
    config = write_training_file(tmp_path / "net.nntxt", dataset={"shuffle": False})
    with zipfile.ZipFile(tmp_path / "first.nnp", "w") as file:
        file.write(config, "net.nntxt")
    events = train(tmp_path / "first.nnp", tmp_path / "out", "--set", "max_epoch=2")
    nn.clear_parameters()
    load(config, prepare_data_iterator=False)  # draws the initial values
    rows = np.loadtxt(tmp_path / "train.csv", delimiter=",", skiprows=1, dtype=np.float32)
    x, t = nn.Variable((BATCH, 6)), nn.Variable((BATCH, 1))
    loss = F.mean(affine(x, t, True))
    solver = S.Sgd(0.1)
    solver.set_parameters(nn.get_parameters())
    want = []
    for step in range(2 * STEPS):
        at = step * BATCH % ROWS
        x.d, t.d = rows[at : at + BATCH, :6], rows[at : at + BATCH, 6:]
        loss.forward()
        solver.zero_grad()
        loss.backward()
        solver.update()
        want.append(float(loss.d))
    np.testing.assert_allclose(losses(events), want, rtol=1e-5)
    trained = {k: v.d.copy() for k, v in nn.get_parameters().items()}
    saved = parameters(tmp_path / "out" / "results_current_2.nnp")
    assert saved.keys() == trained.keys()
    for name, value in trained.items():
        np.testing.assert_allclose(saved[name], value, rtol=1e-5, atol=1e-7)


def test_files_and_lines_are_those_of_nnabla(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    config, out = write_training_file(tmp_path / "net.nntxt"), tmp_path / "a" / "out"
    nn.logger.addHandler(caplog.handler)
    events = train(config, out) if out.parent.mkdir() is None else []
    nn.logger.removeHandler(caplog.handler)
    names = {"monitoring_report.yml", "progress.txt", "results.nnp", "results_current_3.nnp"}
    assert {p.name for p in out.iterdir()} == names
    ends = [e for e in events if e["event"] == "epoch_end"]
    report = (out / "monitoring_report.yml").read_text()
    want = "".join(
        f"{i}:\n  cost: {m['train_loss']!r}\n  train_error: {m['train_error']!r}\n"
        f"  valid_error: {m['valid_error']!r}\n"
        for i, m in enumerate(e["metrics"] for e in ends)
    )
    assert report == want
    lines = [r.message for r in caplog.records if r.message.startswith("epoch")]
    number = r"\d+\.\d{6}"
    line = rf"epoch 2 of 3 cost={number}  {{train_error={number}, valid_error={number}}} "
    assert re.fullmatch(line + r"time=\(\d+\.\ds /\d+\.\ds\)", lines[1])
    assert (out / "progress.txt").read_text() == ""
    with zipfile.ZipFile(out / "results.nnp") as file:
        members = ["nnp_version.txt", "net.nntxt", "parameter.h5", "opt_Sgd_optimizer.h5.optimizer"]
        assert file.namelist() == [*members, "train_state.json"]
        assert file.read("net.nntxt") == config.read_bytes()
    assert capsys.readouterr().out.startswith(f"{out}/results.nnp: 3 epochs, train_loss")


def test_events_tell_the_whole_run(tmp_path: Path) -> None:
    config = write_training_file(tmp_path / "net.nntxt", network=normalized, epochs=2)
    events = train(config, tmp_path / "out", "--seed", 7)
    names = [e["event"] for e in events]
    one = ["epoch_begin", "train_set_begin", *["step_after"] * STEPS, "train_set_end"]
    test = ["test_begin", "test_end"] * 2
    silent = ("step_before", "infer_before", "infer_after")  # written once a second at most
    assert [n for n in names if n not in silent] == [
        "run_begin",
        *[*one, *test, "epoch_end"] * 2,
        "run_end",
    ]
    begin, end = events[0], events[-1]
    assert begin["seed"] == 7 and begin["max_epoch"] == 2 and begin["resumed"] is None
    assert begin["iterations_per_epoch"] == STEPS and begin["train_rows"] == ROWS
    assert begin["parameters"] == 6 * 12 + 2 * 12 + 12 * 9 + 9 + 9 * 3 + 3
    assert (end["status"], end["reason"], end["epoch"]) == ("finished", None, 2)
    means = [e["loss"] for e in events if e["event"] == "train_set_end"]
    np.testing.assert_allclose(means[0], np.mean(losses(events)[:STEPS]), rtol=1e-12)
    again = train(config, tmp_path / "again", "--seed", 7)
    other = train(config, tmp_path / "other")
    assert losses(events) == losses(again) != losses(other)


def test_the_best_network_is_kept(tmp_path: Path) -> None:
    """With a learning rate that overshoots, valid_error rises after some epoch."""
    config = write_training_file(tmp_path / "net.nntxt", solver=S.Adam(0.3), epochs=5)
    events = train(config, tmp_path / "out")
    errors = [e["metrics"]["valid_error"] for e in events if e["event"] == "epoch_end"]
    best = int(np.argmin(errors))
    assert best < 4
    last = [e for e in events if e["event"] == "epoch_end"][-1]
    assert (last["best_epoch"], last["best_value"]) == (best + 1, errors[best])
    with zipfile.ZipFile(tmp_path / "out" / "results.nnp") as file:
        assert json.loads(file.read("train_state.json"))["iteration"] == (best + 1) * STEPS
    short = train(config, tmp_path / "short", "--patience", 1)
    assert short[-1]["reason"] == "patience"
    assert short[-1]["epoch"] == next(i for i in range(1, 5) if errors[i] > min(errors[:i])) + 1


class _Asking:
    """Asks a trainer for something after an iteration, or in the first test after it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, request: str, at: int, test: bool) -> None:
        step, measure = Trainer._step, Trainer._test

        def _step(trainer: Trainer, epoch: int) -> None:
            step(trainer, epoch)
            if not test and trainer.iteration == at:
                trainer.request = request

        def _test(trainer: Trainer, monitor: Any, epoch: int) -> float:
            if test and trainer.iteration >= at:
                trainer.request = request
            return measure(trainer, monitor, epoch)

        monkeypatch.setattr(Trainer, "_step", _step)
        monkeypatch.setattr(Trainer, "_test", _test)


@pytest.mark.parametrize(
    ("at", "test"), [(STEPS + 2, False), (2 * STEPS, False), (2 * STEPS, True), (1, False)]
)
def test_what_was_suspended_goes_on_with_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, test: bool
) -> None:
    def dropped(x: nn.Variable, t: nn.Variable, train: bool) -> nn.Variable:
        h = F.tanh(PF.affine(x, 12, name="first"))
        h = F.dropout(h, 0.3) if train else h
        return F.softmax_cross_entropy(PF.affine(h, 3, name="last"), t)

    config = write_training_file(tmp_path / "net.nntxt", network=dropped, solver=S.Adam(0.02))
    whole, out = train(config, tmp_path / "whole"), tmp_path / "out"
    with monkeypatch.context() as patch:
        _Asking(patch, SUSPEND, at, test)
        events = train(config, out, code=130)
    assert events[-1]["status"] == "suspended" and events[-1]["iteration"] == at
    assert (out / "checkpoint.nnp").exists()
    events = train(config, out, "-r")
    assert [e["resumed"] for e in events if e["event"] == "run_begin"] == [
        None,
        {"epoch": at // STEPS, "iteration": at},
    ]
    assert losses(events) == losses(whole)
    for name in ("monitoring_report.yml",):
        assert (out / name).read_text() == (tmp_path / "whole" / name).read_text()
    assert not (out / "checkpoint.nnp").exists()


def test_a_training_stopped_early_is_tested_and_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_training_file(tmp_path / "net.nntxt")
    _Asking(monkeypatch, STOP, STEPS + 2, False)
    events = train(config, tmp_path / "out")
    assert events[-1]["status"] == "finished" and events[-1]["reason"] == "stop"
    assert events[-2]["event"] == "epoch_end" and "valid_error" in events[-2]["metrics"]
    assert (tmp_path / "out" / "results_current_2.nnp").exists()


def until(process: subprocess.Popen[str], there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not there():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


def test_signals_pause_suspend_and_end(tmp_path: Path) -> None:
    config = write_training_file(tmp_path / "net.nntxt", epochs=100000)
    events, checkpoint = tmp_path / "events.jsonl", tmp_path / "out" / "checkpoint.nnp"
    command = [sys.executable, "-m", "nnl.cli.main", "train", "-c", str(config), "-o"]
    command += [str(tmp_path / "out"), "--events", str(events)]

    def begun() -> subprocess.Popen[str]:
        events.unlink(missing_ok=True)
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        until(process, lambda: events.exists() and "step_after" in events.read_text())
        return process

    def ended() -> tuple[Any, str]:
        message = process.communicate(timeout=60)[1]
        return json.loads(events.read_text().splitlines()[-1]), message

    process = begun()
    process.send_signal(signal.SIGTSTP)
    until(process, lambda: Path(f"/proc/{process.pid}/stat").read_text().split()[2] == "T")
    assert checkpoint.exists()
    process.send_signal(signal.SIGCONT)
    process.send_signal(signal.SIGTERM)
    last, message = ended()
    assert process.returncode == 130 and checkpoint.exists()
    assert last["status"] == "suspended" and last["iteration"] > 0
    assert f"try: nnl train -c {config} -o {tmp_path / 'out'} -r" in message
    process = begun()
    assert not checkpoint.exists()  # this training is another one
    process.send_signal(signal.SIGUSR1)
    last, _ = ended()
    assert process.returncode == 0 and (last["status"], last["reason"]) == ("finished", "stop")
    assert (tmp_path / "out" / "results.nnp").exists()


def test_initial_values_come_from_the_file_where_it_has_no_initialiser(tmp_path: Path) -> None:
    config = write_training_file(tmp_path / "net.nntxt")
    text = config.read_text()
    nn.clear_parameters()
    load(config, prepare_data_iterator=False)
    rng = np.random.default_rng(0)
    for v in nn.get_parameters().values():
        v.d = rng.normal(size=v.shape)
    start = {k: v.d.copy() for k, v in nn.get_parameters().items()}
    nn.save_parameters(tmp_path / "parameter.h5")
    bare = re.sub(r"    initializer \{[^}]*\}\n", "", text)
    for name, network in (("a.nnp", text), ("b.nnp", bare)):
        with zipfile.ZipFile(tmp_path / name, "w") as file:
            file.writestr("net.nntxt", network)
            file.write(tmp_path / "parameter.h5", "parameter.h5")
    none = ["--set", "max_epoch=0"]
    train(config, tmp_path / "c", *none)
    drawn = parameters(tmp_path / "c" / "results.nnp")
    for config, options, want in (
        ("a.nnp", [], drawn),
        ("b.nnp", [], start),
        ("net.nntxt", ["-p", tmp_path / "parameter.h5"], start),
    ):
        train(tmp_path / config, tmp_path / "d", *none, *options)
        found = parameters(tmp_path / "d" / "results.nnp")
        for key, value in want.items():
            np.testing.assert_array_equal(found[key], value)


def test_data_beside_the_file_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_training_file(tmp_path / "net.nntxt", epochs=1)
    config.write_text(config.read_text().replace(f"{tmp_path}/", ""))
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert train(config, tmp_path / "out")[-1]["status"] == "finished"


@pytest.mark.parametrize("explicit", [False, True])
def test_a_cache_is_made_once_and_read_again(tmp_path: Path, explicit: bool) -> None:
    cache = tmp_path / "cache"
    dataset = {"cache_dir": str(cache), "create_cache_explicitly": explicit}
    config = write_training_file(tmp_path / "net.nntxt", epochs=1, dataset=dataset)
    train(config, tmp_path / "out")
    assert (cache / "cache_index.csv").exists()
    write_rows(tmp_path / "train.csv", ROWS // 2, 5)  # is not read any more
    assert train(config, tmp_path / "out")[0]["train_rows"] == ROWS


WRONG = [
    ([], "max_epoch", 2, "--set is 'max_epoch', wanted NAME=VALUE with max_epoch, iter_per_epoch"),
    ([], "max_epoch=x", 2, "--set is 'max_epoch=x', wanted a whole number"),
    (["-C", "gpu"], "max_epoch=1", 2, "-C is 'gpu', wanted cpu or cudnn[:ID]"),
    (["-p", "none.h5"], "max_epoch=1", 3, "there is no file none.h5"),
    (["-o", __file__], "max_epoch=1", 1, f"{__file__}: File exists"),
    (["--patience", "-1"], "max_epoch=1", 2, "--patience is -1, wanted at least 0"),
    (["-O", "-m", "4X"], "max_epoch=1", 2, "-m is '4X', wanted a size such as 1234, 512M or 4G"),
]


@pytest.mark.parametrize(("options", "setting", "code", "text"), WRONG)
def test_wrong_options_are_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    setting: str,
    code: int,
    text: str,
) -> None:
    config = write_training_file(tmp_path / "net.nntxt")
    args = ["train", "-c", str(config), "-o", str(tmp_path / "out"), "--set", setting]
    assert main([*args, *options]) == code
    assert f"nnl train: error: {text}" in capsys.readouterr().err


def test_a_loss_that_is_not_a_number_ends_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_training_file(tmp_path / "net.nntxt", solver=S.Sgd(1e38))
    events = train(config, tmp_path / "out", "--json", code=1)
    assert events[-1]["status"] == "failed" and events[-1]["reason"] == "nan"
    assert events[-2]["event"] == "abort_check"
    error = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert error["code"] == "failed" and error["hint"] == "a smaller learning rate"
    assert "not a number" in error["error"]


def test_files_that_cannot_train_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(text: str, code: int = 1) -> None:
        nn.clear_parameters()
        out = str(tmp_path / "out")
        assert main(["train", "-c", str(config), "-o", out, "--events", "-"]) == code
        printed = capsys.readouterr()
        assert text in printed.err
        lines = [json.loads(line) for line in printed.out.splitlines()]
        assert all(e["status"] == "failed" for e in lines if e["event"] == "run_end")

    config = write_training_file(tmp_path / "net.nntxt")
    text = config.read_text()
    config.write_text(re.sub(r'uri: "[^"]*"', 'uri: ""', text))
    refused("the data set 'Training' has no uri")
    config.write_text(re.sub(r'data_name: "y"', 'data_name: "label"', text))
    refused("optimizer 'opt': the variable 't' takes the column 'label', the data sets have x, y")
    config.write_text(text.replace("max_epoch: 3", "max_epoch: -3"))
    refused("max_epoch is -3, wanted 0 or more")
    config.write_text(text.replace("update_interval: 1", "update_interval: -2"))
    refused("its update_interval is -2, wanted 1 or more")
    config.write_text(text.replace('variable_name: "last/affine/W"', 'variable_name: "end/W"'))
    refused("optimizer 'opt': the network 'Main' has no parameter 'end/W'")
    config.write_text(text)
    os.remove(tmp_path / "train.csv")
    refused("train.csv", 3)
    (tmp_path / "train.csv").write_text("x__0,x__1,y\n" + "1,2,0\n" * 20)
    refused("the column 'x' has minibatches of the shape (8, 2), its variable is (8, 6)")
    config = tmp_path
    refused(f"{config} is a folder, wanted a file", 3)
    config = tmp_path / "net.nntx"
    refused(f"there is no file {config}", 3)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("{}", "train_state.json is no state of a training run"),
        ('{"iteration": -1}', "train_state.json is no state of a training run"),
        ("[" * 100, "is damaged: "),
        ('{"iteration": 1, "functions": [-1, 0]}', "train_state.json is no state"),
        ('{"iteration": 1, "generator": ["a", [1]]}', "train_state.json is no state"),
        (" " * 2**21, "train_state.json is too large"),
    ],
)
def test_damaged_checkpoints_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], state: str, text: str
) -> None:
    config, out = write_training_file(tmp_path / "net.nntxt", epochs=1), tmp_path / "out"
    train(config, out)
    path = out / "results_current_1.nnp"
    with zipfile.ZipFile(path) as file:
        members = {n: file.read(n) for n in file.namelist() if n != "train_state.json"}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
        file.writestr("train_state.json", state)
    train(config, out, "-r", code=1)
    assert text in capsys.readouterr().err
