# SPDX-License-Identifier: Apache-2.0
"""What does not fit into a format is refused before anything is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.solvers as S
from nnl.cli.main import main
from nnl.converters.nnb import writer
from nnl.converters.nnp import wire
from nnl.core.arrays.spec import Spec
from nnl.utils.save import save
from tests.cli.test_convert import write_network


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)


def add_large() -> nn.Variable:
    """A parameter of 2.4 GB that takes no memory, for all its elements are one."""
    shape = (600_000_000,)
    w = nn.parameter.get_parameter_or_create("w", (1,), np.ones(1, np.float32))
    w.data.spec = Spec.of(shape)
    w.data.write("host", np.broadcast_to(np.float32(0), shape))
    return w


def states(path: str) -> None:
    solver = S.Momentum(0.1)
    solver.set_parameters({"w": nn.Variable.from_numpy_array(np.ones(2, np.float32), True)})
    (state,) = solver.get_states().values()
    (m,) = state.pstate.values()
    m.data.spec = add_large().data.spec
    m.data.write("host", np.broadcast_to(np.float32(0), m.shape))
    solver.get_states = lambda: {"w": state}  # type: ignore[method-assign]
    solver.save_states(path)


def network() -> dict[str, Any]:
    x = nn.Variable((1, 2))
    return {
        "networks": [
            {"name": "n", "batch_size": 1, "outputs": {"y": x * 2}, "names": {"x": x}},
        ],
        "executors": [{"name": "e", "network": "n", "data": ["x"], "output": ["y"]}],
    }


@pytest.mark.parametrize(
    ("write", "path"),
    [
        (lambda p: (add_large(), nn.save_parameters(p)), "save_parameters: p.protobuf"),
        (states, "Momentum.save_states: p.protobuf"),
        (lambda p: (add_large(), save(p, network(), include_params=True)), "save: p.protobuf"),
        (lambda p: (add_large(), save(p, network(), parameter_format=".protobuf")), "save: p.nnp"),
    ],
)
def test_a_message_of_more_than_2_gb_is_refused(write: Callable[[str], Any], path: str) -> None:
    file = path.split()[-1]
    text = r": 24\d{8} bytes of numbers, and a protobuf message has at most 2147483647: .h5 holds"
    with pytest.raises(ValueError, match=f"^{path}{text}"):
        write(file)
    assert not Path(file).exists()


def test_converters_refuse_as_well(monkeypatch: Any, capsys: Any) -> None:
    write_network(Path("n.nnp"))
    monkeypatch.setattr(wire, "MOST", 100)
    monkeypatch.setattr(writer, "MOST", 100)
    for name, text in (("m.nnp", "m.nnp: .* a protobuf message has"), ("m.nnb", "NNB: .* at most")):
        assert main(["convert", "n.nnp", name]) != 0
        assert not Path(name).exists()
        printed = capsys.readouterr()
        assert re.search(text, printed.out + printed.err)
    assert main(["convert", "n.nnp", "m.nnp", "--nnp-parameter-h5"]) == 0


@pytest.mark.parametrize("extension", ["h5", "protobuf"])
def test_bfloat16_is_saved_as_float32(extension: str) -> None:
    types = pytest.importorskip("ml_dtypes")
    w = nn.parameter.get_parameter_or_create("w", (3,), np.zeros(3))
    w.d = np.array([1, 2, 3], types.bfloat16)
    nn.save_parameters(f"p.{extension}")
    nn.clear_parameters()
    nn.load_parameters(f"p.{extension}")
    (w,) = nn.get_parameters().values()
    assert w.d.dtype == np.float32 and w.d.tolist() == [1, 2, 3]
