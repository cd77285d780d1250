# SPDX-License-Identifier: Apache-2.0
"""What needs a GPU: definitions and kernels on it against numpy, training, recorded graphs.

Not yet run: `sh tests/cuda/run.sh` does.
"""

import numpy as np
import pytest

import nnl as nn
from nnl.core.ops.op import OPS
from nnl.core.settings.context import SPACES
from nnl.ext import cuda, get_extension_context
from nnl.ext.device.arrays import definition
from nnl.graph.execution.session import session_of
from tests.cuda.test_every_function import WAITING
from tests.cuda.training import assert_same, lenet, resnet, train
from tests.test_derived import CASES, Case

LACKING = cuda.missing("cudnn") or ([] if cuda.get_device_count() else ["a GPU"])
if LACKING:
    pytest.skip(f"this machine lacks {', '.join(LACKING)}", allow_module_level=True)
pytestmark = pytest.mark.cuda
REFERENCE = nn.Context(["numpy:float"])
# Sums on a GPU are in another order, and its functions round in their own way.
TOLERANCE = {"float": 2e-4, "half": 2e-2, "bfloat16": 1e-1}


def forward_and_backward(op, i, ctx, half=None):
    with nn.context_scope(ctx), nn.auto_forward(), np.errstate(all="ignore"):
        case = Case(op, i, np.float32)
        xs = case.variables(case.arrays if half is None else case.rounded(half))
        ys = case.run(xs)
        values = [y.d.copy() for y in ys]
        return values + (case.gradients(xs, ys) if half is None else [])


def close(got, want, tolerance):
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    if want.dtype.kind not in "fV":
        np.testing.assert_array_equal(got, want)
        return
    got, want = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.isfinite(got), finite)
    scale = max(1.0, float(np.abs(want[finite]).max(initial=0)))
    np.testing.assert_allclose(got[finite], want[finite], rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("op,i", CASES)
def test_every_function_gives_what_numpy_gives(op, i):
    want = forward_and_backward(op, i, REFERENCE)
    got = forward_and_backward(op, i, get_extension_context("cudnn"))
    for a, b in zip(want, got, strict=True):
        close(b, a, TOLERANCE["float"])


@pytest.mark.parametrize("op,i", [p for p in CASES if p.values[1] == 0])
@pytest.mark.parametrize("name", ["half", "bfloat16"])
def test_every_function_in_16_bits(op, i, name):
    ctx = get_extension_context("cudnn", type_config=name)
    half = ctx.target.half
    want = forward_and_backward(op, i, nn.Context([f"numpy:{name}"]), half)
    for a, b in zip(want, forward_and_backward(op, i, ctx, half), strict=True):
        close(b, a, TOLERANCE[name])


@pytest.mark.parametrize("name", ["float", "half", "bfloat16"])
@pytest.mark.parametrize("network", [lenet, resnet])
def test_training(network, name):
    got = train(get_extension_context("cudnn", type_config=name), network, batch=8)
    want = train(REFERENCE, network, batch=8)
    if name == "float":
        assert_same(got, want, 1e-3)
    else:
        np.testing.assert_allclose(got.losses, want.losses, rtol=10 * TOLERANCE[name])


def test_a_step_is_recorded_and_waits_for_nothing():
    import cupyx

    states = []

    def after(step, loss):
        plan = session_of([loss]).plans["train"].plan
        states.append((plan.native.reasons, plan.summary()))

    train(get_extension_context("cudnn"), resnet, steps=4, after=after)
    reasons, summary = states[-1]
    assert reasons == [] and "recorded graphs" in summary, summary
    with cupyx.allow_synchronize(False):
        train_quietly()


def test_nobody_else_gets_the_memory_of_a_recorded_graph():
    """What its steps ask for while they are recorded lies at addresses that the graph contains."""
    import nnl.functions as F
    import nnl.parametric_functions as PF

    nn.clear_parameters()
    rng = np.random.default_rng(0)
    values = rng.normal(size=(6, 4, 8)).astype(np.float32)
    ctx = get_extension_context("cudnn")
    with nn.context_scope(ctx):
        x, state = nn.Variable(values.shape), F.constant(0, (1, 1, 4, 8))
        y = PF.lstm(x, state, state)[0]  # which CuPy computes
        x.d = values
        for _ in range(3):
            y.forward()
        want = y.d.copy()
        (plan,) = session_of([y]).plans.values()
        assert plan.plan.native.reasons == []
        device = SPACES["cuda:0"].device
        sizes = [n for k in range(4, 18) for n in [1 << k] * 8]
        others = [device.xp.full((n,), 7, "float32") for n in sizes]
        y.forward()
        np.testing.assert_array_equal(y.d, want)
        assert all(bool((a == 7).all()) for a in others)


def test_tables_of_the_host_live_as_long_as_the_graphs_that_read_them():
    import nnl.functions as F
    from nnl.ext.device.arrays import MOST_CONSTANTS

    values = np.random.default_rng(0).normal(size=(1, 2, 4, 5)).astype(np.float32)
    x = nn.Variable(values.shape)
    with nn.context_scope(get_extension_context("cudnn")):
        y = F.onnx_resize(x, sizes=(1, 2, 7, 9), mode="cubic")
        x.d = values
        for _ in range(3):
            y.forward()
        want = y.d.copy()
        device = SPACES["cuda:0"].device
        device.activate()
        for k in range(2 * MOST_CONSTANTS):
            device.xp.asarray(np.full(9, k, np.int64))
        others = [device.xp.full((n,), 3, "int64") for n in range(1, 200)]
        y.forward()
        np.testing.assert_array_equal(y.d, want)
    del others


def train_quietly():
    """Steps whose loss nobody reads."""
    import nnl.functions as F
    import nnl.solvers as S

    with nn.context_scope(get_extension_context("cudnn")):
        nn.clear_parameters()
        x, t = nn.Variable((4, 1, 16, 16)), nn.Variable((4, 1))
        loss = F.mean(F.softmax_cross_entropy(lenet(x), t))
        solver = S.Adam()
        solver.set_parameters(nn.get_parameters())
        for _ in range(5):
            x.d, t.d = 1, 2
            loss.forward(clear_no_need_grad=True)
            solver.zero_grad()
            loss.backward(clear_buffer=True)
            solver.update()
    nn.clear_parameters()


def test_a_profile_is_a_table_with_shares_of_the_peak():
    import nnl.functions as F

    x = nn.Variable.from_numpy_array(np.ones((64, 64), np.float32))
    with nn.context_scope(get_extension_context("cudnn")):
        y = F.sum(F.exp(F.sin(x)))
        for _ in range(2):
            y.forward()
        with nn.profile() as recorded, nn.auto_forward():
            y.forward()
            F.relu(x)
    lines = str(recorded).splitlines()
    assert len(lines) >= 4 and all("%" in line for line in lines[1:-1]), lines


def test_random_numbers_are_those_of_the_host():
    import nnl.functions as F

    def draw(ctx):
        nn.seed(5)
        with nn.context_scope(ctx):
            y = F.rand(-1, 2, (1001,)) + F.dropout(F.randn(0, 1, (1001,)), 0.5)
            values = []
            for _ in range(4):
                y.forward(clear_buffer=True)
                values.append(y.d.copy())
        return np.array(values)

    np.testing.assert_allclose(
        draw(get_extension_context("cudnn")), draw(REFERENCE), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    "op,i", [p for p in CASES if p.values[1] == 0 and p.values[0].name not in WAITING]
)
def test_definitions_run_on_cupy_where_kernels_decline(op, i):
    get_extension_context("cudnn")  # makes the memory space known
    check_definition(SPACES["cuda:0"].device, Case(op, i, np.float32))


def check_definition(device, case):
    op = case.op
    if op.takes_rng:
        return
    xs = case.variables()
    with nn.context_scope(REFERENCE), nn.auto_forward(), np.errstate(all="ignore"):
        before = [None if x is None else x.d.copy() for x in xs]
        want = [y.d.copy() for y in case.run(xs)]
    attrs = case.resolved_attrs
    in_specs = tuple(None if x is None else x.spec for x in xs)
    found = next((b for (t, *specs), b in attrs.bound.items() if tuple(specs) == in_specs), None)
    if found is None:
        return
    made = definition(op, attrs, found.in_specs, found.out_specs, device.xp, device.name)
    if made is None or not hasattr(attrs, "forward"):
        return
    device.activate()
    given = [
        None if a is None else device.xp.array(a.astype(s.dtype))
        for a, s in zip(before, found.in_specs, strict=True)
    ]
    got = made[0](*given)
    for y, a in zip(got if isinstance(got, tuple) else (got,), want, strict=False):
        close(y.get(), a, TOLERANCE["float"])


def test_there_are_kernels_for_most_functions():
    names = set(cuda.setups())
    assert len(names & set(OPS)) > 100
