# SPDX-License-Identifier: Apache-2.0
"""Training on an OpenCL device: what numpy computes, replayed as recorded launches."""

from __future__ import annotations

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.ext_utils import get_extension_context
from nnl.training.loss_scaling import DynamicLossScalingUpdater
from tests.cuda.training import assert_same, lenet, resnet, train

REFERENCE = nn.Context(["numpy:float"])


@pytest.mark.parametrize("network", [lenet, resnet])
def test_static_graphs_give_what_numpy_gives(network):
    got = train(get_extension_context("opencl"), network)
    assert_same(got, train(REFERENCE, network), 2e-5)


def test_16_bits_stay_near_float32():
    got = train(get_extension_context("opencl", type_config="half"), lenet, steps=3)
    want = train(REFERENCE, lenet, steps=3)
    np.testing.assert_allclose(got.losses, want.losses, rtol=16 * 2.0**-10)


def losses(ctx, wrap=None):
    """Of a small network in steps that are functions."""
    nn.clear_parameters()
    nn.seed(1)
    rng, found = np.random.default_rng(0), []
    with nn.context_scope(ctx), nn.auto_forward():
        solver = S.Adam(0.01)

        def network(x):
            return PF.affine(F.tanh(PF.affine(x, 8, name="a")), 3, name="b")

        def step(x, t):
            loss = F.mean(F.softmax_cross_entropy(network(x), t))
            solver.zero_grad()
            loss.backward()
            solver.update()
            return loss

        network(nn.Variable((4, 5)))
        solver.set_parameters(nn.get_parameters())
        run = wrap(step) if wrap else step
        for _ in range(6):
            x = nn.Variable.from_numpy_array(rng.normal(size=(4, 5)).astype(np.float32))
            t = nn.Variable.from_numpy_array(rng.integers(0, 3, (4, 1)))
            found.append(float(run(x, t).d))
    nn.clear_parameters()
    return found


@pytest.mark.parametrize("wrap", [None, nn.compile, nn.coexecute])
def test_steps_that_are_functions(wrap):
    got = losses(get_extension_context("opencl"), wrap)
    np.testing.assert_allclose(got, losses(REFERENCE), rtol=1e-5)


def test_a_loss_scale_that_overflows_is_lowered_and_the_step_left_out():
    nn.clear_parameters()
    nn.seed(1)
    with nn.context_scope(get_extension_context("opencl")):
        x = nn.Variable((4, 5))
        x.d = np.random.default_rng(0).normal(size=x.shape)
        loss = F.sum(PF.affine(x, 3) ** 2) * 100
        solver = S.Momentum(0.01)
        solver.set_parameters(nn.get_parameters())
        before = {k: v.d.copy() for k, v in nn.get_parameters().items()}
        updater = DynamicLossScalingUpdater(solver, loss, scale=2.0**126)
        updater.update()
        assert updater.overflows == 1 and updater.scale < 2.0**126
        after = {k: v.d.copy() for k, v in nn.get_parameters().items()}
    nn.clear_parameters()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)


def test_a_saved_program_runs_there(tmp_path):
    nn.clear_parameters()
    x = nn.Variable((8, 4))
    x.d = np.random.default_rng(0).normal(size=x.shape)
    y = F.relu(PF.affine(x, 3, name="fc"))
    y.forward()
    nn.save_program(tmp_path / "fc.nnlp", {"y": y}, {"x": x})
    nn.clear_parameters()
    with nn.context_scope(get_extension_context("opencl")):
        found = nn.load_program(tmp_path / "fc.nnlp").run(x=x.d)["y"]
    np.testing.assert_allclose(np.asarray(found), y.d, rtol=1e-5, atol=1e-6)


def test_what_has_no_kernel_runs_on_the_host_and_the_summary_says_so():
    from nnl.core.graph.node import capture
    from nnl.graph.plan.plan import Plan

    x = nn.Variable((3, 4))
    x.d = np.random.default_rng(0).normal(size=x.shape)
    with nn.context_scope(get_extension_context("opencl")):
        y = F.exp(F.sort(x))
    plan = Plan(capture([y.edge]), {y.edge.key})
    for _ in range(3):
        plan.run()
        np.testing.assert_allclose(plan.value(y.edge.key).get(), np.exp(np.sort(x.d)), rtol=1e-6)
    assert ("sort", "it runs on the host: it has no kernel") in plan.native.reasons
