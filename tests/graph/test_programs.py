# SPDX-License-Identifier: Apache-2.0
"""Programs in files: what is saved runs to the same bits, here and in another process."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nnl as nn
import nnl.solvers as S
from nnl.ext import native
from nnl.graph.program.program_data import from_dict, to_dict
from tests.graph.saved import (
    MORE,
    NETWORKS,
    STEPS,
    check,
    leaves_of,
    saved_sample,
    training_step,
)
from tests.test_derived import CASES, Case, each_sample

CONTEXTS = ["numpy", "cpu"] if native.library() is not None else ["numpy"]
ROOT = Path(nn.__file__).parent.parent


# ---- every function ----


@each_sample(CASES)
@pytest.mark.parametrize("backend", CONTEXTS)
def test_samples_of_every_function_run_to_the_same_bits(op, i, backend, tmp_path):
    case, path = Case(op, i, np.float32), tmp_path / "x.nnlp"
    with nn.context_scope(nn.Context([f"{backend}:float"])):
        try:
            values, want = saved_sample(case, path)
        except NotImplementedError as e:
            assert "runs Python code, which a program cannot hold" in str(e)
            return
        found = nn.load_program(path)
        check(found.run(**values), want)
    program = found["main"]
    data = json.loads(json.dumps(to_dict(program)))
    assert to_dict(from_dict(data)) == to_dict(program) == data
    assert from_dict(data).text() == program.text()


IN_ANOTHER_PROCESS = """
import sys, pathlib, numpy as np, nnl as nn
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.nnlp")):
    given, want = (np.load(path.with_suffix(f".{k}.npz")) for k in ("given", "want"))
    got = nn.load_program(path).run(**given)
    for k in want:
        assert got[k].tobytes() == want[k].tobytes(), (path, k)
    print(path.stem)
"""


def run_elsewhere(folder):
    """Names of the programs in a folder that another process runs to the same bits."""
    found = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS, str(folder)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert not found.returncode, found.stderr
    return found.stdout.split()


@pytest.mark.parametrize("most", [1, pytest.param(1000, marks=pytest.mark.long)])
def test_samples_of_every_function_run_to_the_same_bits_in_another_process(most, tmp_path):
    names = []
    for op, i in [p.values for p in CASES if p.values[1] < most]:
        path = tmp_path / f"{op.name}-{i}.nnlp"
        try:
            values, want = saved_sample(Case(op, i, np.float32), path)
        except NotImplementedError:
            continue
        np.savez(path.with_suffix(".given.npz"), **values)
        np.savez(path.with_suffix(".want.npz"), **want)
        names.append(path.stem)
    assert len({n.partition("-")[0] for n in names}) > 300
    assert run_elsewhere(tmp_path) == sorted(names)


# ---- networks and training steps ----


def check_steps(name, solvers, dtype, folder):
    for number, solver in enumerate(solvers):
        check_step(name, solver(), dtype, folder / f"step{number}")
    assert len(run_elsewhere(folder)) == len(solvers)


def check_step(name, solver, dtype, path):
    network, values = {**STEPS, **MORE}[name]()
    inputs = {k: nn.Variable.from_numpy_array(v) for k, v in values.items()}
    step = training_step(network, solver, dtype)
    step(**inputs)
    step.save(path.with_suffix(".nnlp"))
    found = nn.load_program(path.with_suffix(".nnlp"))
    for _ in range(2):
        check(found.run(**values), {"loss": step(**inputs)["loss"].d})
    for key, v in nn.get_parameters(grad_only=False).items():
        assert v.d.tobytes() == found.arrays[key].data.tobytes(), key
    # the state that it has reached goes on elsewhere
    found.save(path.with_suffix(".nnlp"))
    np.savez(path.with_suffix(".given.npz"), **values)
    np.savez(path.with_suffix(".want.npz"), loss=step(**inputs)["loss"].d)
    nn.clear_parameters()


SOLVERS = lambda: S.Sgd(0.01), lambda: S.Momentum(0.01), lambda: S.Adam(0.001)


@pytest.mark.parametrize("name", STEPS)
def test_a_training_step_goes_on_to_the_same_bits(name, tmp_path):
    check_steps(name, SOLVERS, "float", tmp_path)


@pytest.mark.parametrize("dtype", ["bfloat16", "half", "double"])
def test_a_training_step_in_other_types(dtype, tmp_path):
    check_steps("small", [lambda: S.Momentum(0.01)], dtype, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", MORE)
def test_training_steps_of_other_networks(name, tmp_path):
    check_steps(name, [lambda: S.Momentum(0.01)], "float", tmp_path)


def test_networks_run_to_the_same_bits(tmp_path):
    for name, network in NETWORKS.items():
        ys = network()
        ys = dict(enumerate(ys)) if isinstance(ys, tuple) else {0: ys}
        outputs = {f"y{k}": y for k, y in ys.items()}
        (x,) = {id(v.data): v for y in ys.values() for v in leaves_of(y) if v.name == "x"}.values()
        path = tmp_path / f"{name}.nnlp"
        nn.save_program(path, outputs, {"x": x})
        nn.forward_all(list(outputs.values()), clear_buffer=True)
        want = {k: y.d for k, y in outputs.items()}
        check(nn.load_program(path).run(x=x.d), want)
        np.savez(path.with_suffix(".given.npz"), x=x.d)
        np.savez(path.with_suffix(".want.npz"), **want)
        nn.clear_parameters()
    assert run_elsewhere(tmp_path) == sorted(NETWORKS)
