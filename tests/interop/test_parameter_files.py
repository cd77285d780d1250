# SPDX-License-Identifier: Apache-2.0
"""Parameter and solver state files in both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.converters.nnp.parameter_files import load_parameters, save_parameters
from nnl.core.parameters.parameter import set_parameter
from tests.interop.bridge import Nnabla
from tests.native.kernels import require_library
from tests.solvers.cases import NAMES, OURS

pytestmark = pytest.mark.interop

SHAPES: dict[str, tuple[int, ...]] = {"c/conv/W": (2, 3), "bn/mean": (1, 2), "a": ()}


def values() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {k: rng.normal(size=s).astype(np.float32) for k, s in SHAPES.items()}


def check(got: dict[str, np.ndarray], flags: dict[str, bool]) -> None:
    wanted = values()
    assert sorted(got) == sorted(wanted)
    for name, value in wanted.items():
        np.testing.assert_array_equal(got[name], value)
        assert got[name].shape == SHAPES[name] and flags[name] == (name != "bn/mean")


def in_cpp(tmp_path: Path, given: dict[str, np.ndarray]) -> Any:
    """What C++ has read of a program with parameters."""
    y = None
    for name, value in given.items():
        v = nn.Variable.from_numpy_array(value, need_grad=name != "bn/mean")
        set_parameter(name, v)
        y = F.sum(v) if y is None else y + F.sum(v)
    nn.save_program(tmp_path / "p.nnlp", y)
    return require_library().ModelFile(str(tmp_path / "p.nnlp"))


@pytest.mark.parametrize("writer", ["Python", "C++"])
@pytest.mark.parametrize("extension", ["h5", "protobuf"])
def test_nnabla_loads_our_parameters(
    nnabla: Nnabla, tmp_path: Path, extension: str, writer: str
) -> None:
    path = tmp_path / f"p.{extension}"
    file = in_cpp(tmp_path, values())
    if writer == "C++":
        file.save_parameters(str(path))
    else:
        save_parameters(path)
    out = nnabla.exec(
        f"nn.load_parameters({str(path)!r})\n"
        "for k, v in nn.get_parameters(grad_only=False).items():\n"
        "    outputs['d:' + k], outputs['f:' + k] = v.d, v.need_grad\n"
    )
    check(
        {k[2:]: v for k, v in out.items() if k[0] == "d"},
        {k[2:]: bool(v) for k, v in out.items() if k[0] == "f"},
    )


@pytest.mark.parametrize("extension", ["h5", "protobuf"])
def test_we_load_parameters_of_nnabla(nnabla: Nnabla, tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"p.{extension}"
    nnabla.exec(
        "for k, v in inputs.items():\n"
        "    p = nn.Variable.from_numpy_array(v, need_grad=k != 'bn/mean')\n"
        "    nn.parameter.set_parameter(k, p)\n"
        f"nn.save_parameters({str(path)!r})\n",
        values(),
    )
    file = in_cpp(tmp_path, {k: 0 * v for k, v in values().items()})
    file.load_parameters(str(path))
    for name, value in values().items():
        assert file.parameter(name) == value.tobytes()
    nn.clear_parameters()
    load_parameters(path)
    got = nn.get_parameters(grad_only=False)
    check({k: v.d for k, v in got.items()}, {k: v.need_grad for k, v in got.items()})


STATES = """
ws = {k: nn.Variable.from_numpy_array(v) for k, v in inputs.items()}
solver = getattr(S, NAME)()
solver.set_parameters(ws)
def step():
    for v in ws.values():
        v.g = 0.5
    solver.update()
def report():
    for k, v in ws.items():
        outputs[k] = v.d
"""


@pytest.mark.parametrize("extension", ["h5", "protobuf"])
@pytest.mark.parametrize("name", [n for n in NAMES if n not in OURS])
def test_training_goes_on_in_the_other_framework(
    nnabla: Nnabla, tmp_path: Path, name: str, extension: str
) -> None:
    ours, theirs = tmp_path / f"ours.{extension}", tmp_path / f"theirs.{extension}"
    text = f"NAME = {name!r}" + STATES
    shared: dict[str, object] = {"nn": nn, "S": S, "np": np, "inputs": values(), "outputs": {}}
    exec(text, shared)
    for _ in range(3):
        shared["step"]()  # type: ignore[operator]
    shared["solver"].save_states(str(ours))  # type: ignore[attr-defined]
    shared["report"]()  # type: ignore[operator]
    after_3 = dict(shared["outputs"])  # type: ignore[call-overload]
    after_3 = {k: v.copy() for k, v in after_3.items()}
    shared["step"]()  # type: ignore[operator]
    shared["report"]()  # type: ignore[operator]
    there = nnabla.exec(
        text + f"solver.load_states({str(ours)!r})\nstep()\nreport()\n"
        f"solver.save_states({str(theirs)!r})\n",
        after_3,
    )
    for k, v in shared["outputs"].items():  # type: ignore[attr-defined]
        np.testing.assert_allclose(there[k], v, rtol=2e-5, atol=2e-6)
    solver = shared["solver"]
    before = {k: s.pstate for k, s in solver.get_states().items()}  # type: ignore[attr-defined]
    before = {k: {n: v.d.copy() for n, v in p.items()} for k, p in before.items()}
    solver.load_states(str(theirs))  # type: ignore[attr-defined]
    for k, state in solver.get_states().items():  # type: ignore[attr-defined]
        assert state.t == 4
        for n, v in state.pstate.items():
            np.testing.assert_allclose(v.d, before[k][n], rtol=2e-5, atol=1e-6)
