# SPDX-License-Identifier: Apache-2.0
"""The commands that docs/formats.md shows do what it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.cli.main import main
from nnl.utils.save import save

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"


def test_the_commands_of_the_page_on_files_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = pytest.importorskip("nnl.converters.onnx", reason="ONNX is not installed")
    pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    nn.clear_parameters()
    x = nn.Variable((2, 1, 8, 8))
    features = F.relu(PF.convolution(x, 4, (3, 3), name="conv"))
    y = PF.affine(features, 5, name="head")
    names = {"x": x, "features": features}
    net = {"name": "net", "batch_size": 2, "outputs": {"y": y}, "names": names}
    executor = {"name": "run", "network": "net", "data": ["x"], "output": ["y"]}
    save("net.nnp", {"networks": [net], "executors": [executor]})
    onnx.save("net.onnx", {"y": y}, {"x": x})
    image = np.random.default_rng(0).normal(size=x.shape).astype(np.float32)
    np.save("image.npy", image)
    np.save("image1.npy", image[:1])
    for i in range(2):
        np.save(f"{i}.npy", image[i])
    Path("images.csv").write_text("x\n0.npy\n1.npy\n")
    nn.clear_parameters()
    blocks = re.findall(r"```\n(nnl .*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    commands = [
        command
        for line in "".join(blocks).splitlines()
        for command in line.partition("#")[0].split(";")
    ]
    assert len(commands) > 8
    for command in commands:
        program, *args = shlex.split(command)
        assert program == "nnl" and main(args) == 0, command
    made = {"net.nnp", "net.nnlp", "part.nnp", "result_0.npy", "out"}
    assert made <= {p.name for p in tmp_path.iterdir()}
