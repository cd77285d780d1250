# SPDX-License-Identifier: Apache-2.0
"""What train.py writes and prints, and what it says to wrong input."""

import errno
import json
import sys

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl import models as M
from nnl.ext import cuda
from nnl.models.catalogue import Network
from tests.imagenet.conftest import tiny
from tests.models.test_torch_weights import resnet18


def test_a_run_leaves_numbers_curves_a_table_and_the_network(script, tmp_path, capsys):
    command = "--network tiny --engine synthetic --samples 24 --batch-size 4 --epochs 2 --verify"
    assert script.train.main([*command.split(), "--out", str(tmp_path / "first")]) == 0
    said = capsys.readouterr().out
    assert "epoch 2: loss" in said and "tiny.nnp gives the same scores, within" in said
    for extension in ("nnp", "nnlp", "h5"):
        assert (tmp_path / "first" / f"tiny.{extension}").stat().st_size > 0
    result = json.loads((tmp_path / "first" / "result.json").read_text())
    assert result["network"] == "tiny" and len(result["every_epoch"]) == 2
    assert result["options"]["batch_size"] == "4"
    table = (tmp_path / "runs.md").read_text().splitlines()
    assert table[0].startswith("| run | network |") and table[2].startswith("| first | tiny |")
    pytest.importorskip("matplotlib")
    assert (tmp_path / "first" / "curves.png").stat().st_size > 1000


def test_numbers_that_cannot_be_written_end_no_training(
    script, start, tmp_path, monkeypatch, capsys
):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "result.json").write_text("{")  # of a run that was killed just then
    assert start(tmp_path / "run", "--no-export") == 0
    assert "| run | tiny |" in (tmp_path / "runs.md").read_text()

    def full(path, *_):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(script.report.Path, "write_text", full)
    assert start(tmp_path / "again", "--no-export") == 0
    said = capsys.readouterr()
    assert "epoch 2: loss" in said.out
    assert "train.py: no result.json: [Errno 28] No space left on device" in said.err
    assert "| run | tiny |" in (tmp_path / "runs.md").read_text()


@pytest.mark.parametrize("type_config", ["half", "bfloat16"])
def test_files_are_for_any_machine(start, tmp_path, capsys, type_config):
    assert start(tmp_path, "--type-config", type_config, "--verify") == 0
    assert "tiny.nnlp gives the same scores, within" in capsys.readouterr().out
    program = nn.load_program(str(tmp_path / "tiny.nnlp"))["main"].text()
    assert ":f32[" in program and "f16[" not in program


def test_a_file_with_other_scores_is_an_error(script, start, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(script.export, "_nnlp", lambda path: lambda x: np.float32(1))
    assert start(tmp_path / "run", "--verify") == 1
    assert "tiny.nnlp: its scores differ from the network's by" in capsys.readouterr().err


def test_throughput_is_printed_as_json_and_a_profile_as_a_table(start, tmp_path, capsys):
    assert start(tmp_path, "--throughput", 2) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["network"] == "tiny" and found["images_per_s"] > 0 and found["peak_mib"] > 1
    assert found["images_per_s"] == pytest.approx(4e3 / found["step_ms"])
    assert start(tmp_path, "--profile") == 0
    assert "convolution" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_evaluation_takes_a_checkpoint_or_weights_of_others(script, start, tmp_path, capsys):
    assert start(tmp_path / "run", "--no-export", "--ema", 0.5) == 0
    top1 = json.loads((tmp_path / "run" / "result.json").read_text())["top1"]
    assert start(tmp_path / "run", "--evaluate", "--ema", 0.5) == 0
    assert f"24 pictures: top-1 {top1:.2f} %" in capsys.readouterr().out
    weights = resnet18()
    np.savez(tmp_path / "resnet18.npz", **weights)
    more = ("--network", "resnet18", "--size", 32, "--weights", tmp_path / "resnet18.npz")
    assert start(tmp_path / "run", *more, "--evaluate") == 0
    assert "24 pictures: top-1" in capsys.readouterr().out
    first = nn.get_parameters(grad_only=False)["stem/conv/W"]
    np.testing.assert_array_equal(first.d, weights["conv1.weight"])


def test_training_begins_with_weights_of_others(script, tmp_path):
    weights = resnet18()
    np.savez(tmp_path / "resnet18.npz", **weights)
    for classes in (7, 1000):
        nn.clear_parameters()
        M.build("resnet18", nn.Variable((1, 3, 32, 32)), num_classes=classes)
        script.step.begin_with(tmp_path / "resnet18.npz")
        p = nn.get_parameters(grad_only=False)
        np.testing.assert_array_equal(p["stem/conv/W"].d, weights["conv1.weight"])
        same = np.array_equal(p["classifier/affine/b"].d.ravel(), weights["fc.bias"][:classes])
        assert same == (classes == 1000)


def test_wrong_folders_are_named(start, tmp_path, capsys):
    data = tmp_path / "data"

    def refused():
        assert start(tmp_path / "run", "--engine", "nnl", "--data", data) == 1
        return capsys.readouterr().err

    assert "train.py: error: " in (text := refused()) and str(data / "train") in text
    image = pytest.importorskip("PIL.Image")
    for part, names in (("train", "ab"), ("val", "ac")):
        for name in names:
            (data / part / name).mkdir(parents=True)
            image.new("RGB", (40, 40)).save(data / part / name / "0.jpg")
    (data / "train" / "empty").mkdir()
    assert "empty" in refused()
    (data / "train" / "empty").rmdir()
    assert "fewer than batch_size=4" in refused()
    for i in range(1, 4):
        image.new("RGB", (40, 40)).save(data / "train" / "a" / f"{i}.jpg")
    text = refused()
    assert str(data / "val") in text and "'b'" in text and "'c'" in text


def test_what_is_not_installed_is_named(script, start, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    (tmp_path / "train" / "a").mkdir(parents=True)
    image = pytest.importorskip("PIL.Image")
    for i in range(4):
        image.new("RGB", (40, 40)).save(tmp_path / "train" / "a" / f"{i}.jpg")
    assert start(tmp_path / "run", "--engine", "dali", "--data", tmp_path) == 1
    assert "train.py: error: " in (text := capsys.readouterr().err) and "nvidia-dali" in text
    if cuda.missing("cudnn"):
        assert start(tmp_path / "run", "--context", "cudnn") == 1
        text = capsys.readouterr().err
        assert "train.py: error: get_extension_context: 'cudnn' needs NVIDIA's driver" in text


def test_a_loss_that_is_not_finite_ends_the_run(script, start, tmp_path, monkeypatch, capsys):
    def broken(x, num_classes=1000, test=False):
        return tiny(x, num_classes, test) * F.constant(np.inf, (1, 1))

    monkeypatch.setitem(M.NETWORKS, "broken", Network(broken, 32))
    assert start(tmp_path / "run", "--network", "broken", "--log-every", 1) == 1
    assert "the loss is nan at step 1: a lower --learning-rate" in capsys.readouterr().err
