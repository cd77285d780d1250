# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.training import MovingAverage, load_run, save_run


def made(width=3):
    nn.clear_parameters()
    nn.seed(1)
    x = nn.Variable((4, 2))
    x.d = np.arange(8).reshape(4, 2)
    loss = F.mean(F.dropout(PF.affine(x, width), 0.5) ** 2)
    solver = S.Adam(0.1)
    solver.set_parameters(nn.get_parameters())
    return loss, solver, MovingAverage(nn.get_parameters(), 0.9)


def steps(n, loss, solver, average):
    for _ in range(n):
        loss.forward()
        solver.zero_grad()
        loss.backward()
        solver.update()
        average.update()
    return [v.d.copy() for v in nn.get_parameters().values()] + [float(loss.d)]


def test_a_run_goes_on_as_if_it_had_not_stopped(tmp_path):
    whole = steps(6, *made())
    loss, solver, average = made()
    steps(3, loss, solver, average)
    parameters = nn.get_parameters()
    save_run(tmp_path / "run.safetensors", parameters, {"a": solver}, [3], average.values)
    values = {k: v.data.copy() for k, v in average.values.items()}
    loss, solver, average = made()
    steps(1, loss, solver, average)
    parameters = nn.get_parameters()
    path = tmp_path / "run.safetensors"
    assert load_run(path, parameters, {"a": solver}, average.values) == [3]
    for k, v in values.items():
        np.testing.assert_array_equal(average.values[k].data, v)
    for a, b in zip(steps(3, loss, solver, average), whole, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_file_of_another_network_is_refused_and_changes_nothing(tmp_path):
    path = tmp_path / "run.safetensors"
    _, solver, _ = made(4)
    save_run(path, nn.get_parameters(), {"a": solver}, 0)
    _, solver, average = made()
    before = [v.d.copy() for v in nn.get_parameters().values()]
    with pytest.raises(ValueError, match=r"run.safetensors: 'parameter/affine/W' has the shape"):
        load_run(path, nn.get_parameters(), {"a": solver})
    with pytest.raises(ValueError, match=r"it has no 'average/affine/W': it is of another network"):
        load_run(path, {}, {}, average.values)
    with pytest.raises(ValueError, match=r"it has no 'solver/b/affine/W/t'"):
        load_run(path, {}, {"b": solver})
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"load_run: .*run.safetensors"):
        load_run(path, nn.get_parameters(), {"a": solver})
    for v, value in zip(nn.get_parameters().values(), before, strict=True):
        np.testing.assert_array_equal(v.d, value)
