# SPDX-License-Identifier: Apache-2.0
"""The runner: events in their order, aborts, summaries, and what presents them."""

from __future__ import annotations

import csv
import io
import json
import math

import numpy as np
import pytest

pytest.importorskip("onnx")

import nnl.deep500 as d5  # noqa: E402
from nnl.deep500 import optimizers, plots, tickers  # noqa: E402
from nnl.deep500.dataset import DataSet, Input  # noqa: E402
from nnl.deep500.runner import (  # noqa: E402
    EVENTS,
    AbortAtAccuracy,
    AbortOnNan,
    Runner,
    Ticker,
    TimingSummaryTicker,
)
from tests.deep500 import models  # noqa: E402


def problem(n=64, seed=0):
    """Images whose class is where their bright row lies."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 8, n)
    x = rng.normal(0, 0.1, size=(n, 1, 8, 8)).astype(np.float32)
    x[np.arange(n), 0, label] += 2
    return {"x": x, "label": label}


def runner(*more, lr=0.1, test=True, summary=None, backend="reference"):
    net = d5.network(models.lenet(), backend)
    net.add_loss("scores")
    return Runner(
        DataSet(problem(), 16, shuffle=True),
        DataSet(problem(32, 1), 16) if test else None,
        net,
        optimizers.optimizer("momentum", net, lr=lr),
        "scores",
        more,
        summary,
    )


class Recorder(Ticker):
    """Writes down every event."""

    def __init__(self):
        self.events = []
        for name in EVENTS:
            setattr(self, name, lambda *_, name=name: self.events.append(name))


TRAIN = ["before_optimizer_step", "after_optimizer_step", "abort_after_optimizer"]
TEST = ["before_inference", "after_inference"]


def test_fourteen_events_come_in_their_order():
    recorder = Recorder()
    runner(recorder).run(2)
    epoch = ["before_epoch", "before_training_set", *TRAIN * 4, "after_training_set"]
    epoch += ["before_test_set", *TEST * 2, "after_test_set", "after_epoch", "abort_after_test"]
    assert recorder.events == ["before_epochs", *epoch * 2, "after_epochs"]
    assert list(dict.fromkeys(recorder.events)) == list(EVENTS) and len(EVENTS) == 14


@pytest.mark.parametrize("backend", ["reference", "nnl", "torch"])
def test_one_call_trains_tests_and_reports(backend):
    if d5.backends()[backend]:
        pytest.skip(f"{backend} is not installed")
    job = runner(backend=backend).run(6)
    assert job.ended == "done" and job.samples == 6 * 64
    assert job.current.accuracy > 0.9 and job.current.loss < job.epochs[0].loss / 2
    assert job.current.tested == 32 and len(job.current.test_losses) == 2


def test_a_loss_that_is_no_number_ends_the_run_with_its_report(tmp_path):
    recorder = Recorder()
    path = tmp_path / "run.csv"
    job = runner(recorder, AbortOnNan(), tickers.CsvTicker(path), lr=1e30).run(9)
    assert job.ended == "aborted" and job.reason.startswith("the loss is nan after")
    assert recorder.events[-3:] == ["after_training_set", "after_epoch", "after_epochs"]
    assert path.read_text().startswith("epoch,samples,train_s,test_s,loss,accuracy\n0,")


def test_a_target_that_is_reached_ends_the_run():
    recorder = Recorder()
    job = runner(recorder, AbortAtAccuracy(0.5)).run(50)
    assert job.ended == "aborted" and "accuracy" in job.reason and len(job.epochs) < 50
    assert recorder.events[-2:] == ["abort_after_test", "after_epochs"]


def test_an_interrupted_run_writes_its_report(tmp_path):
    class Interrupt(Ticker):
        def after_optimizer_step(self, job, runner, inputs, outputs):
            if job.samples == 32:
                raise KeyboardInterrupt

    path = tmp_path / "run.csv"
    job = runner(Interrupt(), tickers.CsvTicker(path)).run(5)
    assert job.ended == "interrupted" and len(path.read_text().splitlines()) == 2


def test_a_run_needs_no_test_set():
    job = runner(test=False).run(1)
    assert math.isnan(job.current.accuracy) and len(job.current.losses) == 4


def test_the_timing_summary_records_every_step():
    job = runner(summary=TimingSummaryTicker()).run(1)
    e = job.current
    assert len(e.step_s) == 4 and len(e.inference_s) == 2
    assert 0 < sum(e.step_s) <= e.train_s and 0 < sum(e.inference_s) <= e.test_s


def test_tickers_present_what_was_summed_up(tmp_path):
    text, lines, bar = io.StringIO(), io.StringIO(), io.StringIO()
    job = runner(
        tickers.AccuracyTicker(text),
        tickers.JsonLinesTicker(lines),
        tickers.ProgressTicker(bar),
        tickers.CsvTicker(tmp_path / "run.csv"),
        tickers.LossPlotTicker(tmp_path / "loss.png"),
    ).run(2)
    assert text.getvalue().splitlines()[1].startswith(f"epoch 1: loss {job.current.loss:.4f}")
    events = [json.loads(line) for line in lines.getvalue().splitlines()]
    steps = [e for e in events if e["event"] == "after_optimizer_step"]
    assert [e["loss"] for e in steps[4:]] == job.current.losses
    assert events[-1] == {"event": "after_epochs", "ended": "done", "reason": ""}
    assert "epoch 1" in bar.getvalue()
    with open(tmp_path / "run.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert [float(r["samples"]) for r in table] == [64, 128]
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", ["Accuracy", "Progress", "JsonLines", "Csv", "LossPlot"])
def test_every_ticker_works_alone(kind, tmp_path):
    file = tmp_path / "file.png" if kind in ("Csv", "LossPlot") else io.StringIO()
    runner(getattr(tickers, f"{kind}Ticker")(file)).run(1)
    assert file.stat().st_size if kind in ("Csv", "LossPlot") else file.getvalue()


def test_csv_files_become_four_pictures(tmp_path):
    for name in ("adam", "sgd"):
        runner(tickers.CsvTicker(tmp_path / f"{name}.csv")).run(1)
    made = plots.generate_plots(tmp_path, lambda name: "adam" in name, "only_adam")
    assert [p.name for p in made] == [
        "only_adam_samples_accuracy.png",
        "only_adam_train_accuracy.png",
        "only_adam_samples_loss.png",
        "only_adam_train_loss.png",
    ]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in made)
    with pytest.raises(FileNotFoundError, match="there is no such CSV file in"):
        plots.generate_plots(tmp_path, lambda name: False)


def test_data_sets_take_lists_and_arrays():
    data = DataSet([Input("x", [[1.0], [2.0], [3.0]]), Input("label", np.arange(3))], 2)
    (batch,) = list(data)
    assert len(data) == 1 and batch["x"].tolist() == [[1.0], [2.0]]
    assert batch["label"].tolist() == [0, 1]
    mixed = DataSet({"x": np.arange(100)}, 50, None, shuffle=True)
    mixed.shuffle()
    both = np.concatenate([b["x"] for b in mixed])
    assert sorted(both) == list(range(100)) and both.tolist() != list(range(100))
    parts = [DataSet({"x": np.arange(12)}, 2, None).part(r, 3) for r in range(3)]
    assert [list(p)[1]["x"].tolist() for p in parts] == [[6, 7], [8, 9], [10, 11]]


def test_data_sets_name_what_does_not_fit():
    with pytest.raises(ValueError, match=r"different or no lengths: \{'x': 3, 'label': 2\}"):
        DataSet({"x": [1, 2, 3], "label": [1, 2]}, 1)
    with pytest.raises(ValueError, match=r"no input 'label', known are \['x'\]"):
        DataSet({"x": [1, 2, 3]}, 1)
    with pytest.raises(ValueError, match="batch_size is 0, wanted at least 1"):
        DataSet({"x": [1]}, 0, None)
