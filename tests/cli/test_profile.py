# SPDX-License-Identifier: Apache-2.0
"""nnl profile and compare_with_cpu: what they write, and when they fail."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.cli.main import main
from nnl.cli.training import profile
from tests.cli.training_files import normalized, write_training_file


def columns_of(path: Path) -> tuple[list[str], dict[str, str]]:
    with open(path, newline="") as file:
        header, *rows = csv.reader(file)
    return header, {row[0]: row[1] for row in rows}


def test_profile_times_every_part_of_a_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "SECONDS", 0.001)
    config = write_training_file(tmp_path / "net.nntxt", network=normalized, weight_decay=0.1)
    args = ["profile", "-c", str(config), "-o", str(tmp_path / "out")]
    assert main([*args, "--json"]) == 0
    (times,) = json.loads(capsys.readouterr().out)["optimizers"].values()
    header, rows = columns_of(tmp_path / "out" / "profile.csv")
    assert header == ["time in ms", "optimizer 'opt' with network 'Main'"]
    assert {k: f"{v:.6f}" for k, v in times.items()} == rows
    for name in ("load_dataset", "let_data", "forward_all", "backward_all", "update (Sgd)"):
        assert float(rows[name]) >= 0
    assert "weight_decay (Sgd)" in rows and "monitor_loss" in rows
    for direction in ("forward", "backward"):
        for place, kind in (("first/affine", "Affine"), ("bn", "BatchNormalization")):
            assert f"{direction}_function ({place} : {kind})" in rows
    assert main(args) == 0
    lines = capsys.readouterr().out.splitlines()
    printed = [float(line.split()[0]) for line in lines[1:]]
    assert printed == sorted(printed, reverse=True) and len(printed) == len(rows)


def in_numpy(proto: Any) -> None:
    proto.global_config.default_context.backends[:] = ["numpy:float"]


def test_contexts_agree_and_other_networks_do_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def other(x: nn.Variable, t: nn.Variable, train: bool) -> nn.Variable:
        h = F.tanh(PF.affine(x, 12, name="first"))
        return F.softmax_cross_entropy(PF.affine(1.01 * h, 3, name="last"), t)

    def same(x: nn.Variable, t: nn.Variable, train: bool) -> nn.Variable:
        h = F.tanh(PF.affine(x, 12, name="first"))
        return F.softmax_cross_entropy(PF.affine(1.0 * h, 3, name="last"), t)

    files = [
        write_training_file(tmp_path / f"{i}.nntxt", change, network=network, solver=S.Adam())
        for i, (network, change) in enumerate(
            ((same, lambda proto: None), (same, in_numpy), (other, lambda proto: None))
        )
    ]

    def compare(second: Path, *more: str) -> int:
        args = ["compare_with_cpu", "-c", files[0], "-c2", second, "-o", tmp_path / "out", *more]
        return main([str(a) for a in args])

    assert compare(files[1], "--json") == 0
    result = json.loads(capsys.readouterr().out)
    header, rows = columns_of(tmp_path / "out" / "compare_with_cpu.csv")
    assert header == ["1-Correl", "optimizer 'opt' with network 'Main'"]
    assert result["largest"] < 1e-4 and all(float(v) < 1e-4 for v in rows.values())
    assert {"forward_function (0 Affine, 0)", "backward_function (last/affine/W)"} < set(rows)
    assert "update (Adam, first/affine/b)" in rows
    assert compare(files[2]) == 1
    assert "more than the tolerance 0.001" in capsys.readouterr().err
    _, rows = columns_of(tmp_path / "out" / "compare_with_cpu.csv")
    np.testing.assert_allclose(float(rows["forward_function (2 MulScalar, 0)"]), 0.01 / 1.01, 1e-3)
    assert float(rows["forward_function (1 Tanh, 0)"]) == 0
    files[2].write_text(files[2].read_text().replace('"opt"', '"other"'))
    assert compare(files[2]) == 1
    assert "wanted the same ones" in capsys.readouterr().err


def test_summary_is_view(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_training_file(tmp_path / "net.nntxt")
    texts = []
    for command in ("summary", "view"):
        assert main([command, str(config), "--json"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert json.loads(texts[0])["parameters"] == 6 * 12 + 12 + 12 * 3 + 3
