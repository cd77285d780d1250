# SPDX-License-Identifier: Apache-2.0
"""Training with a loss scale that lives on the device: what the host computes, without waiting."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.core.ops.op import OPS
from nnl.training.loss_scaling import DynamicLossScalingUpdater
from tests.cuda import strict_xp
from tests.cuda.strict_device import KERNELS, context

pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # inf is fed
REFERENCE = nn.Context(["numpy:float"])


def steps(ctx, solver, bad=(), count=8, after=lambda updater: None, **kw):
    """(loss, scale, how often the step waited) of each step, and the parameters."""
    nn.clear_parameters()
    nn.seed(1)
    rng, found, fed = np.random.default_rng(0), [], []
    with nn.context_scope(ctx):
        x, t = nn.Variable((8, 5)), nn.Variable((8, 1))
        y = PF.affine(F.tanh(PF.affine(x, 16, name="a")), 10, name="b")
        loss = F.mean(F.softmax_cross_entropy(y, t))
        solver.set_parameters(nn.get_parameters())

        def feed():
            data = rng.normal(size=x.shape)
            data[0, 0] = np.inf if len(fed) in bad else data[0, 0]
            x.d, t.d = data, rng.integers(0, 10, t.shape)
            fed.append(0)

        updater = DynamicLossScalingUpdater(solver, loss, feed, **kw)
        for _ in range(count):
            before = strict_xp.counts["synchronisations"]
            updater.update()
            waited = strict_xp.counts["synchronisations"] - before
            found.append((float(loss.d), updater.scale, waited))
            after(updater)
        parameters = {k: v.d.copy() for k, v in nn.get_parameters().items()}
        assert updater.overflows == len([k for k in bad if k < count])
    nn.clear_parameters()
    return found, parameters


def same(got, want):
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=0, atol=1e-6, err_msg=name)


SOLVERS = [lambda: S.Momentum(0.1), lambda: S.AdamW(0.01), lambda: S.Lamb(0.01)]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("decay", [None, 0.01])
def test_without_overflow_it_gives_what_the_host_gives(solver, decay):
    kw = {"scale": 256.0, "N": 100, "weight_decay": decay}
    want = steps(REFERENCE, solver(), **kw)
    got = steps(context(), solver(), **kw)
    np.testing.assert_allclose([r[0] for r in got[0]], [r[0] for r in want[0]], rtol=1e-5)
    same(got[1], want[1])


@pytest.mark.parametrize("solver", SOLVERS)
def test_kernels_do_it_without_waiting(host_compiler, solver):
    kw = {"scale": 256.0, "N": 3, "weight_decay": 0.01, "bad": (2, 3)}
    want = steps(context(), solver(), **kw)
    got = steps(context(name="kernels"), solver(), **kw)
    assert [r[1:] for r in got[0]] == [(r[1], 0) for r in want[0]]
    same(got[1], want[1])


def test_a_pass_with_an_overflow_changes_nothing_but_the_scale():
    scales, parameters = [], []
    for count in (2, 3, 4, 5):
        found, after = steps(context(), S.Adam(0.01), bad=(2, 3), count=count, scale=64.0)
        scales.append(found[-1][1])
        parameters.append(after)
    assert scales == [64, 32, 16, 16]
    for name, value in parameters[0].items():
        np.testing.assert_array_equal(parameters[1][name], value)
        np.testing.assert_array_equal(parameters[2][name], value)
        assert (parameters[3][name] != value).any()


def test_a_scale_that_is_set_holds_from_the_next_pass_and_nothing_is_recorded_again(host_compiler):
    def fix(updater):
        updater.scale = 32.0

    before, ctx = KERNELS.recordings, context(name="kernels")
    found, got = steps(ctx, S.Sgd(0.01), scale=2.0, N=1, after=fix)
    assert [r[1] for r in found] == [4] + [64] * 7
    assert KERNELS.recordings - before == 3  # forward, backward, update
    _, want = steps(ctx, S.Sgd(0.01), scale=32.0, N=100)
    same(got, want)


def test_the_scale_rises_after_n_passes():
    found, _ = steps(context(), S.Sgd(0.01), scale=2.0, N=3, count=7)
    assert [r[1] for r in found] == [2, 2, 4, 4, 4, 8, 8]


@pytest.mark.parametrize("types", ["float", "bfloat16"])
def test_a_compiled_step_gives_the_same_as_one_graph_that_waits_for_nothing(host_compiler, types):
    def run(compiled):
        nn.clear_parameters()
        nn.seed(1)
        rng = np.random.default_rng(0)
        with nn.context_scope(context(types, "kernels")):
            x, t = nn.Variable((8, 5)), nn.Variable((8, 1))

            def loss():
                y = PF.affine(F.tanh(PF.affine(x, 16, name="a")), 10, name="b")
                return F.mean(F.softmax_cross_entropy(y, t))

            given, solver = loss(), S.Adam(0.01)
            solver.set_parameters(nn.get_parameters())
            given = loss if compiled else given
            updater = DynamicLossScalingUpdater(solver, given, scale=64.0, N=5)
            update = nn.compile(updater.update) if compiled else updater.update
            before = strict_xp.counts["synchronisations"], KERNELS.recordings
            for k in range(8):
                data = rng.normal(size=x.shape)
                data[0, 0] = np.inf if k == 2 else data[0, 0]
                x.d, t.d = data, rng.integers(0, 10, t.shape)
                update()
            waited = strict_xp.counts["synchronisations"] - before[0]
            recorded = KERNELS.recordings - before[1]
            found = {k: v.d.copy() for k, v in nn.get_parameters().items()}
            assert (waited, updater.scale, updater.overflows) == (0, 64.0, 1)
        nn.clear_parameters()
        return found, recorded

    want, got = run(False), run(True)
    assert got[1] == 2  # up to backward, and from there on
    for name, value in want[0].items():
        atol = 1e-6 if types == "float" else 1e-3
        np.testing.assert_allclose(got[0][name], value, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("found", [(False, False), (True, False), (False, True)])
def test_the_kernel_of_the_scale_is_its_definition(host_compiler, found):
    for good in (0, 1, 2):
        results = []
        for ctx in (REFERENCE, context(name="kernels")):
            arrays = [
                nn.NdArray.from_numpy_array(a)
                for a in (np.array(found), np.array(8.0, np.float32), np.array([good, 7]))
            ]
            with nn.context_scope(ctx):
                OPS["follow_loss_scale"](*arrays, factor=4.0, steps=3)
            results.append([a.data.tolist() for a in arrays])
        assert results[0] == results[1]


@pytest.mark.parametrize("value", [1.0, np.inf, -np.inf, np.nan])
def test_gradients_are_checked_on_the_device_with_one_answer(value):
    ws = {k: nn.Variable((3,), need_grad=True) for k in "abc"}
    with nn.context_scope(context()):
        solver = S.Sgd()
        solver.set_parameters(ws)
        for k in "ab":
            ws[k].g = [0, value if k == "b" else 1, 2]
        for method, bad in (
            ("check_inf_grad", np.isinf(value)),
            ("check_nan_grad", np.isnan(value)),
            ("check_inf_or_nan_grad", not np.isfinite(value)),
        ):
            before = strict_xp.counts["synchronisations"]
            assert getattr(solver, method)() is bool(bad)
            assert strict_xp.counts["synchronisations"] == before + 1
        solver.zero_grad()
        assert not solver.check_inf_or_nan_grad()
