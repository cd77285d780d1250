# SPDX-License-Identifier: Apache-2.0
"""Plans on a device: what numpy computes, replayed as recorded graphs, waiting for nothing.

The device lies in host memory (strict_device.py): no GPU has run this.
"""

import weakref
from collections import OrderedDict
from functools import partial

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.core.graph.node import capture
from nnl.core.ops.op import OPS
from nnl.core.settings.context import SPACES
from nnl.ext.cuda.cudnn.run import Engine
from nnl.ext.cuda.cudnn.setups import ENGINES
from nnl.ext.device.executor import MOST_RECORDINGS, DevicePlan
from nnl.ext.native import library
from nnl.graph.plan.plan import Plan
from tests.cuda import strict_xp
from tests.cuda.fake_cudnn import FakeFrontEnd
from tests.cuda.strict_device import DEVICE, KERNELS, SPACE, context
from tests.cuda.training import assert_same, lenet, resnet, train

REFERENCE = nn.Context(["numpy:float"])


@pytest.fixture(params=["kernels alone", "and cuDNN"])
def cudnn(request, monkeypatch):
    """Without and with cuDNN, whose front end is the one of the tests."""
    engine = Engine(FakeFrontEnd(), "fake 9.0", None) if request.param == "and cuDNN" else None
    monkeypatch.setattr(ENGINES, "current", lambda: engine)
    return engine


@pytest.mark.parametrize("clear", [False, True])
@pytest.mark.parametrize("network", [lenet, resnet])
def test_training_gives_what_numpy_gives(network, clear):
    launches = DEVICE.launches
    got = train(context(), network, clear=clear)
    assert_same(got, train(REFERENCE, network, clear=clear), 1e-5)
    assert DEVICE.launches - launches == 10  # forward and backward, from the second step on


@pytest.mark.parametrize("network", [lenet, resnet])
def test_training_with_cuda_kernels_waits_for_nothing(host_compiler, cudnn, network):
    ctx = context(name="kernels")
    launches = KERNELS.launches
    got = train(ctx, network)
    assert got.waits == [0] * 6
    assert KERNELS.launches - launches == 15  # the solver's update too
    assert_same(got, train(REFERENCE, network), 1e-5)


@pytest.mark.parametrize("name", ["half", "bfloat16"])
def test_training_in_16_bits_stays_near_float32(host_compiler, cudnn, name):
    ctx = context(name, "kernels")
    got, want = train(ctx, resnet, steps=4), train(REFERENCE, resnet, steps=4)
    assert got.waits == [0] * 4
    assert all(p.dtype == np.float32 for p in got.parameters.values())
    step = {"half": 2.0**-10, "bfloat16": 2.0**-7}[name]
    np.testing.assert_allclose(got.losses, want.losses, rtol=16 * step)


def graph_of(f, *shapes):
    xs = [nn.Variable(s) for s in shapes]
    for k, x in enumerate(xs):
        x.d = np.random.default_rng(k).normal(size=x.shape).astype(np.float32)
    with nn.context_scope(context()):
        return xs, f(*xs)


def plan_of(y):
    return Plan(capture([y.edge]), {y.edge.key})


def test_the_second_run_records_and_the_third_replays():
    (x,), y = graph_of(lambda x: F.exp(F.sort(x)), (3, 4))
    plan = plan_of(y)
    assert isinstance(plan.native, DevicePlan) and plan.space == SPACE
    for launches in (0, 1, 2):
        before = DEVICE.launches
        plan.run()
        assert DEVICE.launches - before == min(launches, 1)
        np.testing.assert_allclose(plan.value(y.edge.key).get(), np.exp(np.sort(x.d)), rtol=1e-6)
    assert "steps 0 to 1 are 1 recorded graphs" in plan.summary()


def test_data_written_on_the_host_reaches_a_recorded_graph():
    (x,), y = graph_of(lambda x: F.exp(F.sort(x)), (3,))
    plan = plan_of(y)
    recordings = set()
    for k in range(8):
        x.d = np.arange(3) - k
        plan.run()
        recordings.add(sum(plan.native._recordings.values()))
        np.testing.assert_allclose(
            plan.value(y.edge.key).get(), np.exp(np.arange(3.0) - k), rtol=1e-6
        )
    assert max(recordings) <= 2  # when the array has moved once, and not again


def test_another_array_in_a_leaf_is_copied_and_the_first_keeps_its_value():
    (x,), y = graph_of(lambda x: F.exp(F.sort(x)), (2,))
    plan = plan_of(y)
    arrays = [nn.NdArray.from_numpy_array(np.array([k, k + 1.0], np.float32)) for k in range(5)]
    for k in (0, 1, 2, 3, 4, 0, 1):
        x.data = arrays[k]
        plan.run()
        np.testing.assert_allclose(plan.value(y.edge.key).get(), np.exp([k, k + 1.0]), rtol=1e-6)
    for k, a in enumerate(arrays):
        np.testing.assert_array_equal(a.data, [k, k + 1])
    assert sum(plan.native._recordings.values()) <= 2


def test_what_a_plan_writes_is_followed_not_copied():
    w = nn.Variable((2,))
    w.d = 1
    g, t = nn.NdArray((2,)), nn.NdArray.from_numpy_array(np.array(0, np.int64))
    g.data = 1
    lr = nn.NdArray.from_numpy_array(np.array(0.5))
    with nn.context_scope(context()):
        from nnl.graph.execution.executor import GraphExecutor

        calls = None
        for k in range(MOST_RECORDINGS + 4):
            w.d = k  # the array that the update writes is replaced each time
            calls = GraphExecutor().run_calls(
                OPS["sgd_update"], OPS["sgd_update"].attrs(), [(w.data, g, t, lr)], calls
            )
            np.testing.assert_array_equal(w.d, k - 0.5)
    assert int(t.data) == MOST_RECORDINGS + 4


def test_a_step_that_needs_the_host_runs_between_graphs_and_says_why():
    (x, w), y = graph_of(
        lambda x, w: F.exp(F.mul_scalar(F.random_choice(F.exp(F.sort(x)), w, (2,)), 2.0)),
        (3, 4), (3, 4),
    )  # fmt: skip
    w.d = 1
    plan = plan_of(y)
    for _ in range(3):
        plan.run()
        drawn, all_of_them = plan.value(y.edge.key).get(), np.exp(2 * np.exp(x.d))
        assert np.isclose(drawn[..., None], all_of_them[:, None, :]).any(-1).all()
    assert plan.native.reasons == [
        ("random_choice", "it runs on the host: the weights are checked")
    ]
    text = plan.summary()
    assert "random_choice runs outside of the graphs: it runs on the host: the weights" in text
    assert "are 2 recorded graphs" in text


def test_a_fourier_transform_runs_between_graphs():
    """CuPy drops the tables of transforms that have not been used for a while."""
    (x,), y = graph_of(lambda x: F.exp(F.fft(F.sort(x), 1)), (3, 4, 2))
    plan = plan_of(y)
    for _ in range(3):
        plan.run()
    (reason,) = plan.native.reasons
    assert reason[0] == "fft" and "the tables of its Fourier transform may be dropped" in reason[1]


def test_a_recorded_graph_keeps_the_tables_it_reads(monkeypatch):
    monkeypatch.setattr("nnl.ext.device.arrays.MOST_CONSTANTS", 16)
    monkeypatch.setattr(DEVICE.xp, "_constants", OrderedDict())
    enlarge = partial(F.interpolate, scale=(2, 2))
    (x,), y = graph_of(lambda x: enlarge(F.sort(x)), (1, 1, 3, 3))
    plan = plan_of(y)
    plan.run(), plan.run()
    assert plan.native.reasons == []
    held = [weakref.ref(a) for a in plan.native._held]
    assert held
    for n in range(4, 14):  # other tables take their place
        (_,), other = graph_of(enlarge, (1, 1, n, n))
        plan_of(other).run()
    assert all(a() is not None for a in held)
    plan.native.bind_array(plan.binding.given[0][0], DEVICE.xp.empty((1, 1, 3, 3), np.float32))
    assert all(a() is None for a in held)  # what was recorded is gone


@pytest.mark.parametrize("n", [2, 5, 8])
def test_a_recording_that_fails_as_a_whole_is_tried_in_halves(monkeypatch, n):
    """CUDA may tell only at the end, or at a later step, that one of them spoilt it."""
    (x,), y = graph_of(lambda x: chain(x, n), (3, 4))
    plan = plan_of(y)
    plan.run()
    calls, reached = plan.native.calls, []
    assert len(calls) == n
    spoil = calls[n - 2].kernel
    run = spoil.call

    def call():
        if strict_xp.counts["capturing"]:
            reached.append(0)
        run()

    monkeypatch.setattr(spoil, "call", call)

    def refuse(work):
        if reached:
            reached.clear()
            raise RuntimeError("cudaErrorStreamCaptureInvalidated: failed due to a previous error")

    monkeypatch.setattr(DEVICE, "refuses", refuse)
    for _ in range(3):
        plan.run()
        np.testing.assert_array_equal(plan.value(y.edge.key).get(), np.sort(np.float32(x.d)))
    assert [c.alone != "" for c in calls] == [k == n - 2 for k in range(n)]


def chain(x, n):
    for _ in range(n):
        x = F.sort(x)
    return x


def test_two_devices_take_turns():
    """Each works on its own memory and stream, whichever was active before."""
    xs, plans = [], []
    for name in ("strict", "kernels"):
        x = nn.Variable((3,))
        with nn.context_scope(context(name=name)):
            y = F.sort(F.sort(x, reverse=True))
        xs.append(x)
        plans.append((plan_of(y), y))
    for k in range(5):
        for x in xs:
            x.d = [3, 1, k]
        for plan, y in plans:
            plan.run()
            got = plan.value(y.edge.key).get()
            np.testing.assert_array_equal(got, sorted([3, 1, k]))


def test_a_function_in_another_context_runs_on_the_host():
    x = nn.Variable((3,))
    x.d = [3, 1, 2]
    with nn.context_scope(context()):
        h = F.sort(x)
    with nn.context_scope(nn.Context(["cpu:float"])):
        h = F.exp(h)
    with nn.context_scope(context()):
        y = F.sort(h, reverse=True)
    plan = plan_of(y)
    for _ in range(3):
        plan.run()
        np.testing.assert_allclose(plan.value(y.edge.key).get(), np.exp([3, 2, 1]), rtol=1e-6)
    backend = "numpy" if library() is None else "native"
    assert plan.native.reasons == [("exp", f"it runs on the host: {backend} computes it")]


def test_two_devices_in_one_graph_are_refused():
    x = nn.Variable((3,))
    with nn.context_scope(context()):
        h = F.exp(x)
    with nn.context_scope(context(name="kernels")):
        y = F.exp(h)
    with pytest.raises(NotImplementedError, match=r"run in \['strict:0', 'strict:1'\], wanted one"):
        plan_of(y)


def test_an_error_in_a_step_is_raised_and_names_it():
    (x, i), y = graph_of(lambda x, i: F.gather_nd(x, i), (3,), (1, 2))
    plan = plan_of(y)
    plan.run()
    plan.native.calls[0].kernel.call = lambda: strict_xp.xp.nonsense
    for _ in range(2):
        with pytest.raises(AttributeError, match="nonsense"):
            plan.run()


def test_the_steps_of_a_profile_have_times_and_places(capsys):
    (x,), y = graph_of(lambda x: F.exp(F.sort(x)), (300, 40))
    with nn.context_scope(context()), nn.profile() as found:
        y.forward(clear_buffer=True)
    text = str(found)
    assert "sort" in text and "cupy" in text


def test_a_compiled_step_takes_new_arrays_without_recording_again():
    def losses(ctx):
        nn.clear_parameters()
        nn.seed(1)
        found = []
        rng = np.random.default_rng(0)
        with nn.context_scope(ctx):
            solver = S.Adam(0.01)

            def network(x):
                return PF.affine(F.tanh(PF.affine(x, 8, name="a")), 3, name="b")

            @nn.compile
            def step(x, t):
                loss = F.mean(F.softmax_cross_entropy(network(x), t))
                solver.zero_grad()
                loss.backward()
                solver.clip_grad_by_norm(1.0)
                solver.update()
                return loss

            network(nn.Variable((4, 5)))
            solver.set_parameters(nn.get_parameters())
            for _ in range(8):
                x = nn.Variable.from_numpy_array(rng.normal(size=(4, 5)).astype(np.float32))
                t = nn.Variable.from_numpy_array(rng.integers(0, 3, (4, 1)))
                found.append(float(step(x, t).d))
        return found

    np.testing.assert_allclose(losses(context()), losses(REFERENCE), rtol=1e-5)


class TestArrays:
    """NdArrays whose value is on the device."""

    def on_device(self, values):
        nd = nn.NdArray.from_numpy_array(np.asarray(values, np.float32))
        nd.write(SPACE, SPACES[SPACE].from_host(nd.data))
        return nd

    def test_a_fill_is_made_on_the_device(self):
        nd = nn.NdArray((2, 3))
        nd.fill(3)
        before = strict_xp.counts["synchronisations"]
        assert isinstance(nd.read(SPACE), strict_xp.StrictArray) and list(nd.bufs) == [SPACE]
        assert strict_xp.counts["synchronisations"] == before
        np.testing.assert_array_equal(nd.data, np.full((2, 3), 3.0))

    def test_copy_from_stays_on_the_device_and_keeps_the_type(self):
        nd, ints = self.on_device([1.5, 2]), nn.NdArray((2,))
        ints.cast(np.int32)
        before = strict_xp.counts["synchronisations"]
        ints.copy_from(nd)
        assert list(ints.bufs) == [SPACE] and strict_xp.counts["synchronisations"] == before
        assert ints.data.dtype == np.int32 and ints.data.tolist() == [1, 2]

    def test_printing_and_indexing_copy_to_the_host(self):
        nd = self.on_device([1, 2, 3])
        assert "1. 2. 3." in repr(nd)
        nd[1] = 7
        assert nd.data.tolist() == [1, 7, 3] and list(nd.bufs) == ["host"]

    def test_numpy_data_replaces_what_the_device_has(self):
        nd = self.on_device([1, 2])
        nd.data = [5, 6]
        assert nd.read(SPACE).get().tolist() == [5, 6]

    @pytest.mark.parametrize("seed", range(6))
    def test_views_share_what_is_written_here_and_there(self, seed):
        """The same writes and reads, in any order, give what they give on the host."""
        assert shared_writes(seed, context()) == shared_writes(seed, REFERENCE)

    @pytest.mark.parametrize("clear", [False, True])
    def test_a_view_that_a_static_graph_gives_shares_too(self, clear):
        found = []
        for ctx in (context(), REFERENCE):
            x = nn.Variable.from_numpy_array(np.zeros(4, np.float32))
            with nn.context_scope(ctx):
                y = F.reshape(x, (2, 2))
                for k in range(4):  # by then it is recorded
                    y.forward(clear_buffer=clear)
                    y.d[0, 1] = k + 1
                    x.d[2] = k + 5
                    found.append((x.d.tolist(), y.d.tolist()))
        assert found[:4] == found[4:]

    def test_a_view_with_a_buffer_of_its_own_goes_its_way(self):
        with nn.context_scope(context()), nn.auto_forward():
            x = nn.Variable.from_numpy_array(np.zeros(4, np.float32))
            y = F.reshape(x, (2, 2))
            y.data.fill(7)
            x.d[0] = 1
            z = F.reshape(y, (4,))
            z.d[0] = 2
        assert (x.d.tolist(), y.d.tolist()) == ([1, 0, 0, 0], [[2, 7], [7, 7]])

    def test_gradients_add_up_on_the_device(self):
        with nn.context_scope(context()), nn.auto_forward():
            x = nn.Variable.from_numpy_array(np.ones(3, np.float32), need_grad=True)
            for _ in range(3):
                F.sum(x * 2).backward()
            assert list(x.grad.bufs) == [SPACE]
        assert x.g.tolist() == [6, 6, 6]

    def test_channels_last_arrays_come_back_in_the_order_of_their_shape(self):
        space = SPACES[f"{SPACE} channels_last"]
        host = np.arange(24.0).reshape(1, 2, 3, 4)
        nd = nn.NdArray.from_numpy_array(host)
        nd.write(f"{SPACE} channels_last", space.from_host(host))
        assert nd.read(f"{SPACE} channels_last").shape == (1, 3, 4, 2)
        np.testing.assert_array_equal(nd.data, host)
        assert space.empty((1, 2, 3, 4), np.float32).shape == (1, 3, 4, 2)


def shared_writes(seed, ctx):
    """What is read while an array and its views are written through .d and by an update."""
    rng, seen = np.random.default_rng(seed), []
    lr, t = (nn.NdArray.from_numpy_array(np.array(v)) for v in (0.5, 0))
    with nn.context_scope(ctx), nn.auto_forward():
        x = nn.Variable.from_numpy_array(np.arange(6, dtype=np.float32))
        views = [x, F.reshape(x, (2, 3)), F.reshape(x, (3, 2))]
        views.append(F.reshape(views[1], (6, 1)))
        for _ in range(40):
            v = views[rng.integers(len(views))]
            what = rng.integers(5)
            if what == 0:
                v.d[tuple(rng.integers(n) for n in v.shape)] = rng.integers(9)
            elif what == 1:
                v.d = rng.integers(0, 9, v.shape).astype(np.float32)
            elif what == 2:
                g = nn.NdArray.from_numpy_array(np.ones(v.shape, np.float32))
                OPS["sgd_update"](v.data, g, t, lr)
            elif what == 3:
                seen.append(F.mul_scalar(v, 2.0).d.tolist())
            else:
                seen.append(v.d.tolist())
        seen += [v.d.tolist() for v in views]
    return seen


class TestRandomNumbers:
    """Those of the host, from definitions and from kernels."""

    def draw(self, ctx):
        nn.seed(5)
        with nn.context_scope(ctx):
            y = F.rand(-1, 2, (7,)) + F.dropout(F.randn(0, 1, (7,)), 0.5)
            values = []
            for _ in range(4):
                y.forward(clear_buffer=True)
                values.append(y.d.copy())
        return np.array(values)

    def test_replays_draw_new_numbers_and_the_same_as_the_host(self):
        want = self.draw(REFERENCE)
        assert len(np.unique(want)) > 20
        np.testing.assert_allclose(self.draw(context()), want, rtol=1e-5, atol=1e-6)

    def test_kernels_too(self, host_compiler):
        want = self.draw(REFERENCE)
        got = self.draw(context(name="kernels"))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
