# SPDX-License-Identifier: Apache-2.0
"""What stays readable after forward() and backward(): outputs, persistent edges, inputs of a sink,
and everything that nothing was told to clear. Expected values are torch's."""

import re

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from tests.core.conftest import leaf

torch = pytest.importorskip("torch")

X = np.linspace(-1, 1.5, 12).reshape(4, 3).astype(np.float32)
CLEARS = [(f, b) for f in ("", "clear_no_need_grad") for b in (False, True)]


def run(y, forward, clear_buffer):
    y.forward(**({forward: True} if forward else {}))
    y.backward(clear_buffer=clear_buffer)


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.fixture(params=["cpu", "numpy"], autouse=True)
def _context(request):
    with nn.context_scope(nn.Context([f"{request.param}:float"])):
        yield


def normalized(x):
    """A head in which kernels are fused, forward and backward: its inputs by name."""
    a = F.tanh(x)
    b = F.sigmoid(a)
    c = PF.batch_normalization(b)
    d = F.relu(c)
    return {"a": a, "b": b, "c": c, "d": d, "y": F.sum(d**3)}


def torch_normalized(x):
    t = torch.tensor(x, requires_grad=True)
    a = torch.tanh(t)
    b = torch.sigmoid(a)
    c = torch.nn.functional.batch_norm(b, None, None, training=True, eps=1e-5)
    d = torch.relu(c)
    named = {"a": a, "b": b, "c": c, "d": d, "y": (d**3).sum()}
    for v in named.values():
        v.retain_grad()
    named["y"].backward()
    return t, named


@pytest.mark.parametrize("forward, clear", CLEARS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_persistent_edge_keeps_value_and_gradient(forward, clear, dynamic):
    with nn.auto_forward(dynamic):
        n = leaf(X)
        r = F.tanh(n).apply(persistent=True)
        y = F.sum(r**2)
    for _ in range(2):
        run(y, forward, clear)
        close(r.d, np.tanh(X))
        close(r.g, 2 * np.tanh(X))
    close(n.g, 2 * 2 * np.tanh(X) * (1 - np.tanh(X) ** 2))


def test_a_persistent_edge_of_a_dynamic_graph_keeps_its_gradient():
    n = leaf(X)
    with nn.auto_forward():
        r = F.tanh(n).apply(persistent=True)
        h = F.exp(r)
        F.sum(h**2).backward(clear_buffer=True)
    close(r.g, 2 * np.exp(2 * np.tanh(X)))
    assert (h.g == 0).all()


@pytest.mark.parametrize("forward, clear", CLEARS)
def test_persistent_edges_before_fused_kernels_keep_their_gradients(forward, clear):
    n = leaf(X)
    v = normalized(n)
    v["a"].persistent = v["c"].persistent = True
    t, wanted = torch_normalized(X)
    for _ in range(2):
        n.grad.zero()
        run(v["y"], forward, clear)
        for k in "ac":
            close(v[k].d, wanted[k].detach())
            close(v[k].g, wanted[k].grad)
        close(n.g, t.grad)


@pytest.mark.parametrize("settled", [False, True])
def test_backward_without_clearing_leaves_every_gradient_also_where_kernels_are_fused(settled):
    n = leaf(X)
    v = normalized(n)
    t, wanted = torch_normalized(X)
    if settled:  # the plan for steps that clear is there already
        run(v["y"], "clear_no_need_grad", True)
    for _ in range(2):
        n.grad.zero()
        run(v["y"], "clear_no_need_grad", False)
        for k in "abcd":
            close(v[k].g, wanted[k].grad)
        close(n.g, t.grad)
        v["y"].backward()  # nothing was cleared, so again
        close(n.g, 2 * t.grad)
    statistics = nn.get_parameters(grad_only=False)["bn/mean"].d.ravel()
    mean = torch.sigmoid(torch.tanh(torch.tensor(X))).mean(0).numpy()
    close(statistics, (1 - 0.9 ** (2 + settled)) * mean)  # each forward() counts once


def test_a_mask_is_drawn_once_where_a_backward_needs_what_was_dropped():
    n = leaf(np.ones((8, 16)))
    h = F.dropout(F.tanh(n), 0.5, seed=3)
    d = PF.batch_normalization(h)
    y = F.sum(F.relu(d) ** 3)
    y.persistent = True
    h.persistent = True
    for _ in range(3):
        n.grad.zero()
        y.forward(clear_no_need_grad=True)
        before = h.d.copy()
        y.backward()
        np.testing.assert_array_equal(h.d, before)
        assert ((n.g == 0) == (before == 0)).all()


def test_hooks_of_backward_find_what_fused_kernels_drop():
    n = leaf(X)
    v = normalized(n)
    seen = []
    v["y"].forward(clear_no_need_grad=True)
    v["y"].backward(clear_buffer=True, function_post_hook=lambda f: seen.append(f.name))
    close(n.g, torch_normalized(X)[0].grad)
    assert seen == ["Sum", "PowScalar", "ReLU", "BatchNormalization", "Sigmoid", "Tanh"]


@pytest.mark.parametrize("flags", [{}, {"clear_no_need_grad": True}, {"clear_buffer": True}])
def test_the_inputs_of_a_sink_stay_readable(flags):
    n = leaf(X)
    a, b = F.sum(n**2), F.mean(F.tanh(n))
    F.sink(a, b).forward(**flags)
    close(a.d, (X**2).sum())
    close(b.d, np.tanh(X).mean())


@pytest.mark.parametrize("one_input_grad", [True, False])
@pytest.mark.parametrize("clear", [True, False])
def test_the_gradients_of_a_sinks_inputs_stay_readable(one_input_grad, clear):
    n = leaf(X)
    a, b = F.sum(n**2), F.mean(F.tanh(n))
    s = F.sink(a, b, one_input_grad=one_input_grad)
    if not one_input_grad:
        a.g = b.g = 2
    s.forward(clear_no_need_grad=True)
    s.backward(clear_buffer=clear)
    k = 1 if one_input_grad else 2
    assert a.g == b.g == k
    close(n.g, k * (2 * X + (1 - np.tanh(X) ** 2) / X.size))


# ---- what forward has not computed ----


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "nnl"]


def test_backward_runs_what_forward_has_not():
    n = leaf(X)
    r = F.tanh(n)
    y = F.sum(r**2)
    y.backward()
    close(r.d, np.tanh(X))
    close(y.d, (np.tanh(X) ** 2).sum())
    close(n.g, 2 * np.tanh(X) * (1 - np.tanh(X) ** 2))


@pytest.mark.parametrize("flags", [{}, {"clear_no_need_grad": True}])
def test_backward_of_a_sink_after_forward_all_runs_the_sink_alone(flags):
    n = leaf(X)
    calls = []

    class Twice(nn.function.PythonFunction):
        def min_outputs(self):
            return 1

        def setup_impl(self, inputs, outputs):
            outputs[0].reset_shape(inputs[0].shape, True)

        def forward_impl(self, inputs, outputs):
            calls.append(1)
            outputs[0].d = 2 * inputs[0].d

        def backward_impl(self, inputs, outputs, propagate_down, accum):
            inputs[0].g = 2 * outputs[0].g

    a, b = F.sum(Twice()(n)), F.sum(n)
    nn.forward_all([a, b], **flags)
    F.sink(a, b).backward(clear_buffer=True)
    close(n.g, np.full_like(X, 3))
    assert len(calls) == 1


def test_zeros_that_were_read_early_do_not_count_as_computed(caplog):
    n = leaf(X)
    y = F.sum(F.exp(n))
    with caplog.at_level("WARNING"):
        assert y.d == 0 and y.parent.inputs[0].d.shape == X.shape
        y.d  # noqa: B018 (only the first time is worth a warning)
    assert [re.sub(r":\d+", "", w) for w in warnings(caplog)] == [
        f"Variable, output of {f} (test_readable.py) was read by .d before anything was written to "
        "it: it is taken as zeros; a static graph has values after forward() (documentation: "
        "guides/sharp_bits#xd-outside-of-auto_forward-is-not-computed-yet)"
        for f in ("sum", "exp")
    ]
    y.backward()
    close(n.g, np.exp(X))


def test_what_is_written_to_zeros_that_were_read_early_stays(caplog):
    h = F.tanh(leaf(X))
    h.d[0] = 5
    np.testing.assert_array_equal(h.d[:2], [[5, 5, 5], [0, 0, 0]])
    y = h.unlinked() * 2
    y.forward()
    np.testing.assert_array_equal(y.d[:2], [[10, 10, 10], [0, 0, 0]])


def test_a_state_that_no_forward_has_written_is_zeros_and_one_warning(caplog):
    x = leaf(X)
    with nn.parameter_scope("cell"):
        state = F.tanh(x)
    state.name = "h"
    old = state.unlinked()
    y = old + F.tanh(x)
    with caplog.at_level("WARNING"):
        for _ in range(3):
            y.forward()
            close(y.d, np.tanh(X))
    (text,) = warnings(caplog)
    assert re.fullmatch(
        r"Variable 'h' was read by add2 \(test_readable.py:\d+\) before anything was written "
        r"to it: it is taken as zeros; a static graph has values after forward\(\) .*",
        text,
    )
    state.forward()
    y.forward()
    close(y.d, 2 * np.tanh(X))


def test_dynamic_functions_and_arrays_take_zeros_as_well(caplog):
    x = leaf(X)
    late = F.cos(x)
    with nn.auto_forward(), caplog.at_level("WARNING"):
        close((late.unlinked() + F.sin(x)).d, np.sin(X))
    late = F.cos(x)
    with caplog.at_level("WARNING"):
        close((late.data * 2 + 1).data, np.ones_like(X))
        target = nn.NdArray.from_numpy_array(X)
        target.copy_from(F.cos(x).data)
        close(target.data, np.zeros_like(X))
        close(F.cos(x).data.get_data("r"), np.zeros_like(X))
    assert [w.split(" before")[0].split(" was ")[1] for w in warnings(caplog)] == [
        "read by add2", "read by mul_scalar", "read by copy_from", "read by get_data",
    ]  # fmt: skip


def test_a_recurrent_cell_carries_its_state_from_run_to_run(caplog):
    """The state is the output of the graph itself: zeros at first."""
    x = leaf([[1.0]])
    h = nn.Variable((1, 1))
    y = F.tanh(x + 0.5 * h)
    h.data = y.data
    value = 0.0
    with caplog.at_level("WARNING"):
        for _ in range(4):
            y.forward(clear_buffer=True)
            value = np.tanh(1 + 0.5 * value)
            close(y.d, value)
    assert len(warnings(caplog)) == 1


def test_what_was_cleared_is_still_an_error():
    n = leaf(X)
    h = F.tanh(n)
    y = F.sum(h * h)
    y.forward(clear_buffer=True)
    text = (
        r"Variable, output of tanh \(test_r.*\), read by .*: .* was read after it had been cleared"
    )
    with pytest.raises(ValueError, match=text):
        y.backward()
    with pytest.raises(ValueError, match="was read after it had been cleared"):
        _ = h.d


# ---- dynamic graphs ----


def test_a_dynamic_graph_shows_what_is_still_held():
    with nn.auto_forward():
        x = leaf(X)
        h = F.tanh(x)
        z = F.exp(h) * 2  # exp keeps its output, nobody needs that of the product
        seen = []
        z.visit(lambda f: seen.append((f.name, f.inputs[0].d.copy(), f.outputs[0].d.copy())))
        assert [name for name, *_ in seen] == ["Tanh", "Exp", "MulScalar"]
        values = [X, np.tanh(X), np.exp(np.tanh(X)), 2 * np.exp(np.tanh(X))]
        for k, (_, a, b) in enumerate(seen):
            close(a, values[k])
            close(b, values[k + 1])
        assert z.parent.inputs[0].parent.inputs[0] == h
        z.parent.inputs[0].d[...] = 7
        assert (z.parent.inputs[0].d == 7).all()


def test_a_dynamic_graph_says_what_it_has_freed():
    with nn.auto_forward():
        x = leaf(X)
        z = F.sin((x + 1) * 2)  # the sum is held by nobody
        freed = z.parent.inputs[0].parent.inputs[0]
    assert freed.parent.name == "AddScalar" and freed.data.clear_called
    text = (
        r"^Variable, output of add_scalar: .* was read after it had been freed: a dynamic graph "
        r"keeps what gradients need, and what you hold \(documentation: guides/sharp_bits#reading"
    )
    with pytest.raises(ValueError, match=text):
        freed.d  # noqa: B018


@pytest.mark.parametrize("dynamic", [False, True])
def test_function_backward_uses_the_mask_that_forward_has_drawn(dynamic):
    x = leaf(np.ones((4, 16)))
    with nn.auto_forward(dynamic):
        y = F.dropout(x, 0.5)
    if not dynamic:
        y.forward()
    y.g = 3
    for _ in range(2):
        x.grad.zero()
        y.parent.backward([x], [y])
        np.testing.assert_array_equal(x.g, 3 * y.d)
    again = nn.Variable(x.shape)
    again.g = 5
    y.parent.forward([x], [again])
    assert (again.d != y.d).any()
    x.grad.zero()
    y.parent.backward([x], [again])
    np.testing.assert_array_equal(x.g, 5 * again.d)


def test_function_backward_does_not_update_statistics():
    x = leaf(X)
    y = PF.batch_normalization(x)
    y.forward()
    statistics = nn.get_parameters(grad_only=False)["bn/mean"]
    before = statistics.d.copy()
    f = y.parent
    y.g = np.arange(12).reshape(4, 3)
    f.backward(f.inputs, [y])
    np.testing.assert_array_equal(statistics.d, before)
    t = torch.tensor(X, requires_grad=True)
    torch.nn.functional.batch_norm(t, None, None, training=True).backward(torch.tensor(y.g))
    np.testing.assert_allclose(x.g, t.grad, atol=1e-4)


def test_function_backward_computes_what_forward_has_not():
    x = leaf(np.ones((4, 16)))
    y = F.dropout(x, 0.5)
    y.g = 1
    y.parent.backward([x], [y])
    assert set(x.g.ravel()) == {0, 2}
