# SPDX-License-Identifier: Apache-2.0
"""QATScheduler and its parts, where NNabla is no help; tests/interop has the comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.experimental.graph_converters as GC
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.utils import qnn
from nnl.utils.nnp_graph import NnpLoader


def config(**settings: Any) -> qnn.QATConfig:
    c = qnn.QATConfig()
    c.niter_to_recording, c.niter_to_training = 1, 3
    for name, value in settings.items():
        setattr(c, name, value)
    return c


@pytest.fixture
def x() -> nn.Variable:
    return nn.Variable.from_numpy_array(np.random.default_rng(0).normal(size=(2, 3, 6, 6)))


def network(x: nn.Variable) -> nn.Variable:
    h = F.relu(PF.convolution(x, 4, (3, 3), name="c1"))
    return PF.affine(F.relu(PF.convolution(h, 4, (3, 3), name="c2")), 2, name="a")


def types(y: nn.Variable) -> list[str]:
    found: list[str] = []
    y.visit(lambda f: found.append(f.name))
    return found


def test_states_follow_the_steps(x: nn.Variable) -> None:
    y, solver = network(x), S.Sgd(0.1)
    before, solver_parameters = types(y), nn.get_parameters()
    solver.set_parameters(solver_parameters)
    scheduler = qnn.QATScheduler(config(), solver)
    scheduler(y)
    scheduler(network(x), training=False)
    seen = []
    for _ in range(5):
        scheduler.step()
        y.forward()
        seen.append((scheduler.state.name, y.need_grad, round(solver.learning_rate(), 9)))
    recording = [("RECORDING", False, 0.1)] * 2
    assert seen == [("NON_QNN", True, 0.1), *recording, *[("TRAINING", True, 0.01)] * 2]
    assert types(y).count("QuantizeLinear") == 5  # not at the first convolution and at the end
    assert [t for t in types(y) if "Linear" not in t] == before


def test_ranges_are_those_of_the_values(x: nn.Variable) -> None:
    h = F.relu(x)
    y = F.sum(h * 2)
    scheduler = qnn.QATScheduler(config(recorder_activation=qnn.MinMaxMinMaxRecorderCallback))
    scheduler(y)
    scheduler.step()
    scheduler.step()
    values = np.random.default_rng(1).normal(size=(3, *x.shape))
    for value in values:
        x.d = value
        y.forward(clear_buffer=True)
    p = nn.get_parameters(grad_only=False)
    assert nn.get_parameters() == {}
    np.testing.assert_allclose(p["ReLU-0/m-x0"].d, values.min().reshape(1, 1, 1, 1), rtol=1e-6)
    np.testing.assert_allclose(p["ReLU-0/M-x0"].d, values.max().reshape(1, 1, 1, 1), rtol=1e-6)
    np.testing.assert_allclose(p["MulScalar-1/M-x0"].d.ravel(), values.max(), rtol=1e-6)


def test_networks_for_tests_record_nothing(x: nn.Variable) -> None:
    y = F.relu(x)
    scheduler = qnn.QATScheduler(config())
    scheduler(y, training=False)
    scheduler.step()
    scheduler.step()
    y.forward()
    assert nn.get_parameters(grad_only=False)["ReLU-0/M-x0"].d == 0


def test_rounded_values_are_multiples_of_the_scale(x: nn.Variable) -> None:
    """What an affine function gives for inputs and weights rounded by hand."""
    y = PF.affine(x, 2, name="a")
    b = nn.get_parameters()["a/affine/b"]
    b.d = [0.3, -0.2]
    c = config(skip_inputs_layers=[], skip_outputs_layers=[], skip_bias=True)
    c.pow2 = c.RoundingMethod.NOTROUND
    c.recorder_activation = c.recorder_weight = qnn.AbsMaxRecorderCallback
    scheduler = qnn.QATScheduler(c)
    scheduler(y)
    for _ in range(4):
        scheduler.step()
        y.forward()

    def rounded(a: np.ndarray) -> np.ndarray:
        scale = 2 * np.abs(a).max() / 255
        return np.clip(np.round(a / scale), -128, 127) * scale

    w = nn.get_parameters()["a/affine/W"].d
    want = rounded(x.d).reshape(2, -1) @ rounded(w) + b.d
    np.testing.assert_allclose(y.d, want, rtol=1e-4, atol=1e-4)
    assert np.abs(want - (x.d.reshape(2, -1) @ w + b.d)).max() > 1e-3


def test_gradients_pass_through_recorders_and_rounding(x: nn.Variable) -> None:
    y = PF.affine(x, 2, with_bias=False, name="a")
    ranks = qnn.FunctionsRankRecorder()
    y.visit(ranks)
    c = config(skip_inputs_layers=[], skip_outputs_layers=[])
    recording = GC.QuantizeNonQNNToRecordingModifier(ranks.functions_ranks, c)
    r = GC.GraphConverter(recording).convert(y)
    assert types(r) == ["MaxMvaRecorder", "MinMaxMinMaxRecorder", "Affine"]
    w = nn.get_parameters()["a/affine/W"]
    w.grad.zero()
    r.forward()
    r.backward()
    np.testing.assert_allclose(w.g, np.tile(x.d.reshape(2, -1).sum(0)[:, None], 2), rtol=1e-4)


def test_several_outputs_are_changed_together(x: nn.Variable) -> None:
    h = F.relu(PF.convolution(x, 4, (3, 3), name="c"))
    a, b = PF.affine(h, 2, name="a"), PF.affine(h, 3, name="b")
    scheduler = qnn.QATScheduler(config(skip_outputs_layers=[]))
    scheduler([a, b])
    for _ in range(4):
        scheduler.step()
        nn.forward_all([a, b])
    assert a.parent.inputs[0].parent == b.parent.inputs[0].parent
    assert types(a).count("QuantizeLinear") == 4  # h, weight, bias and what relu reads


def test_the_network_for_tests_is_saved(x: nn.Variable, tmp_path: Path) -> None:
    y, vy = network(x), network(x)
    scheduler = qnn.QATScheduler(config())
    scheduler(y)
    scheduler(vy, training=False)
    for _ in range(4):
        scheduler.step()
        nn.forward_all([y, vy])
    path = str(tmp_path / "q.nnp")
    scheduler.save(path, x, batch_size=2)
    nn.clear_parameters()
    net = NnpLoader(path).get_network("net", batch_size=2)
    net.inputs["x0"].d = x.d
    net.outputs["y0"].forward()
    np.testing.assert_allclose(net.outputs["y0"].d, vy.d, rtol=1e-5, atol=1e-6)
    assert "QuantizeLinear" in types(net.outputs["y0"])


def test_wrong_settings_are_named(x: nn.Variable, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="config has niter_to_recording 1 and niter_to_training 1"):
        qnn.QATScheduler(config(niter_to_training=1))
    with pytest.raises(ValueError, match="niter_to_recording 0 and niter_to_training -1, wanted"):
        qnn.QATScheduler()
    with pytest.raises(NotImplementedError, match="precision_mode is PrecisionMode.QNN, wanted"):
        GC.QuantizeRecordingToTrainingModifier({}, config(precision_mode=qnn.PrecisionMode.QNN))
    scheduler = qnn.QATScheduler(config())
    with pytest.raises(ValueError, match="save: no network was given with training=False"):
        scheduler.save(str(tmp_path / "q.nnp"), x)
    with pytest.raises(NotImplementedError, match="save: deploy is True, wanted False"):
        scheduler.save(str(tmp_path / "q.nnp"), x, deploy=True)
