# SPDX-License-Identifier: Apache-2.0
"""What the passes do to programs, and what they leave alone."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.core.graph.node import capture
from nnl.core.ops.op import OPS
from nnl.ext import native
from nnl.ext.library import Abilities, kernel_names
from nnl.graph.execution.session import session_of
from nnl.graph.lowering.lowering import lower, settle
from nnl.graph.passes import PASSES
from nnl.graph.plan.plan import Plan
from nnl.graph.program.program import VerifyError, verify
from tests.graph.fusion import check_appending
from tests.native.kernels import require_onednn

pytestmark = pytest.mark.skipif(native.library() is None, reason="no native engine")


def leaf(shape, seed=0, **kw):
    return nn.Variable.from_numpy_array(
        np.random.default_rng(seed).normal(size=shape).astype(np.float32), **kw
    )


def rewritten(*outputs):
    """The steps, by name, of the program that computes the outputs, after all passes."""
    edges = [y.edge for y in outputs]
    program, _ = lower(capture(edges), {e.key for e in edges})
    for rewrite in PASSES:
        rewrite(program, native.library())
        verify(program)
    return [s.op for s in program.steps]


def reference(build):
    """What the numpy context computes."""
    with nn.context_scope(nn.Context(["numpy:float"])):
        y = build()
        y.forward(clear_buffer=True)
    return y.d.copy()


def steps_of(y, mode="infer"):
    return [s.op for s in session_of([y]).plans[mode].plan.steps]


def test_an_elementwise_chain_is_one_step():
    x = leaf((3, 4))
    assert rewritten(F.exp(F.tanh(x) * 2 + x)) == ["fused_elementwise"]


def test_arrays_that_stretch_join_the_loop():
    x, b = leaf((3, 4)), leaf((1, 4))
    assert rewritten(F.relu(x + b) * 2) == ["fused_elementwise"]


def test_steps_of_other_shapes_are_loops_of_their_own():
    x, b = leaf((3, 4)), leaf((1, 4))
    assert rewritten((x * 2 - 1) + (b * 3 - 1)) == ["fused_elementwise"] * 2


def test_a_write_between_two_steps_is_not_moved_over():
    def build():
        w = nn.Variable.from_numpy_array(np.ones((2, 2), np.float32))
        x = leaf((2, 2))
        before = w * 2
        written = F.assign(w, x)
        return F.sum(before + written * 0)

    y = build()
    y.forward(clear_buffer=True)
    np.testing.assert_allclose(y.d, 8.0)


def test_a_value_computed_twice_is_computed_once():
    x = leaf((5, 5))
    names = rewritten(F.sum(F.cumsum(x, axis=0)) + F.sum(F.cumsum(x, axis=0)))
    assert names.count("cumsum") == 1


def test_zeros_with_another_shape_stay_zeros_of_their_own():
    def build():
        x, b, g = leaf((4, 3), need_grad=True), leaf((1, 3), 1), leaf((1, 3), 2)
        y = F.batch_normalization(x, b, g, leaf((1, 3), 3), leaf((1, 3), 4), axes=[1])
        (gx,) = nn.grad([F.sum(y * x)], [x])
        return nn.grad([F.sum(gx * x)], [x])[0]

    y = build()
    rewritten(y)
    y.forward(clear_buffer=True)
    np.testing.assert_allclose(y.d, reference(build), rtol=1e-4, atol=1e-4)


def test_random_numbers_are_never_shared():
    names = rewritten(F.rand(shape=(4,)) - F.rand(shape=(4,)))
    assert names.count("rand") == 2


def test_constants_are_computed_when_the_plan_is_made():
    x = leaf((2, 3))
    names = rewritten(x + F.sort(F.constant(2.0, (2, 3))))
    assert names == ["add2"] or names == ["fused_elementwise"]


def test_conversions_of_types_are_made_once():
    x, label = leaf((4, 3)), nn.Variable.from_numpy_array(np.zeros((4, 1), np.float32))
    a, b = F.softmax_cross_entropy(x, label), F.softmax_cross_entropy(x * 2, label)
    assert rewritten(a + b).count("cast") == 1


def inference_net(x):
    h = PF.convolution(x, 8, (3, 3), pad=(1, 1), name="c1")
    h = F.relu(PF.batch_normalization(h, batch_stat=False, name="n1"))
    g = PF.convolution(h, 8, (3, 3), pad=(1, 1), with_bias=False, name="c2")
    return F.relu(PF.batch_normalization(g, batch_stat=False, name="n2") + h)


def statistics():
    for k, p in nn.get_parameters(grad_only=False).items():
        p.d = np.random.default_rng(len(k)).uniform(0.5, 1.5, p.shape).astype(np.float32)


def test_normalization_by_known_statistics_goes_into_the_convolution():
    x = leaf((2, 3, 9, 7))
    y = inference_net(x)
    statistics()
    y.forward(clear_buffer=True)
    names = steps_of(y)
    assert names.count("convolution_fused") == 2
    assert not {"batch_normalization", "relu", "add2"} & set(names)
    want = reference(lambda: inference_net(x))
    np.testing.assert_allclose(y.d, want, rtol=1e-4, atol=1e-4)


def test_normalization_stays_a_step_where_numpy_computes_float64():
    x = leaf((2, 3, 9, 7))
    with nn.context_scope(nn.Context(["cpu:double"])):
        y = inference_net(x)
        statistics()
        y.forward(clear_buffer=True)
    with nn.context_scope(nn.Context(["numpy:double"])):
        want = inference_net(x)
        want.forward()
    np.testing.assert_allclose(y.d, want.d, rtol=1e-12)


def test_weights_are_packed_again_when_anybody_has_changed_them():
    x = leaf((2, 3, 9, 7))
    y = inference_net(x)
    statistics()
    y.forward(clear_buffer=True)
    w = nn.get_parameters()["c1/conv/W"]
    held = w.d

    def check():
        y.forward(clear_buffer=True)
        want = reference(lambda: inference_net(x))
        np.testing.assert_allclose(y.d, want, rtol=1e-4, atol=1e-4)

    w.d = w.d * 2
    check()
    w.d[...] = 0.5
    check()
    held = w.d
    check()
    held *= 3  # without asking for .d again
    check()
    held *= 2
    del held  # written to since the latest run, and nobody holds it any more
    check()
    w.data.zero()
    check()
    other = nn.Variable(w.shape)
    other.data = w.data  # from now on the same memory
    check()
    other.d = 0.25
    check()
    other.d[...] = 0.75
    check()
    nn.get_parameters(grad_only=False)["n1/bn/mean"].d = 2
    check()


def test_plans_that_come_and_go_pack_weights_each_for_itself():
    x = leaf((2, 3, 9, 7))
    inference_net(x)
    statistics()
    want = reference(lambda: inference_net(x))
    for _ in range(30):
        y = inference_net(x)
        y.forward(clear_buffer=True)
        np.testing.assert_allclose(y.d, want, rtol=1e-4, atol=1e-4)
        del y  # the next plan may well lie at the same address
    assert list(nn.get_parameters()["c1/conv/W"].data.bufs) == ["host"]


def test_what_is_computed_once_is_there_at_every_run():
    """The bias that a normalization gives a convolution is made once, under another shape."""
    torch = pytest.importorskip("torch")
    rng, images = np.random.default_rng(0), leaf((4, 1, 8, 8)).d
    x = nn.Variable((1, 1, 8, 8))
    h = F.relu(PF.batch_normalization(PF.convolution(x, 3, (3, 3), name="c"), batch_stat=False))
    y = PF.affine(F.max_pooling(h, (2, 2)), 5, name="f")
    for v in nn.get_parameters(grad_only=False).values():
        v.d = rng.uniform(0.5, 1.5, v.shape).astype(np.float32)
    p = {k: torch.tensor(v.d) for k, v in nn.get_parameters(grad_only=False).items()}
    beta, gamma, mean, var = (p[f"bn/{k}"].flatten() for k in ("beta", "gamma", "mean", "var"))
    f = torch.nn.functional
    h = f.conv2d(torch.tensor(images), p["c/conv/W"], p["c/conv/b"])
    h = f.max_pool2d(f.relu(f.batch_norm(h, mean, var, gamma, beta, eps=1e-5)), 2)
    want = (h.flatten(1) @ p["f/affine/W"] + p["f/affine/b"]).numpy()
    for k, image in enumerate(images):
        x.d = image
        y.forward(clear_buffer=True)
        np.testing.assert_allclose(y.d[0], want[k], rtol=1e-5)


def test_a_weight_that_moves_to_other_memory_is_packed_again():
    x = leaf((2, 3, 9, 7))
    y = inference_net(x)
    statistics()
    y.forward(clear_buffer=True)
    w = nn.get_parameters()["c1/conv/W"]
    wide = np.zeros((*w.shape[:-1], 6), np.float32)
    for value in (0.5, 2.0):  # not contiguous: each run works on a copy of it
        wide[...] = value
        w.data.bufs["host"] = wide[..., ::2]
        y.forward(clear_buffer=True)
        want = reference(lambda: inference_net(x))
        np.testing.assert_allclose(y.d, want, rtol=1e-4, atol=1e-4)


def test_packed_weights_are_used_again_when_nobody_holds_them():
    require_onednn()
    nn.clear_parameters()
    y = inference_net(leaf((2, 3, 9, 7)))
    statistics()
    with nn.profile() as p:
        for _ in range(3):
            y.forward(clear_buffer=True)
        held = nn.get_parameters()["c1/conv/W"].d
        for _ in range(3):
            y.forward(clear_buffer=True)
    assert [e.op for e in p.events].count("pack_convolution") == 2 * (1 + 3)
    assert held is not None


def test_what_depends_on_weights_alone_is_computed_once_where_inputs_are_known():
    x, w = leaf((2, 6)), leaf((4, 6), 1)
    y = F.affine(x, F.transpose(F.tanh(w), (1, 0)))
    program, binding = lower(capture([y.edge]), {y.edge.key}, plain={y.edge.key}, inputs=[x.edge])
    settle(program, binding, [x.edge])
    plan = Plan.rest(program, binding, 0)

    def check():
        plan.run()
        want = x.data.read("host") @ np.tanh(w.data.read("host")).T
        np.testing.assert_allclose(plan.value(y.edge.key), want, rtol=1e-5, atol=1e-5)

    with nn.profile() as p:
        for k in range(3):
            x.d = np.full((2, 6), k, np.float32)
            check()
    assert [e.op for e in p.events].count("transpose") == 1
    w.d = w.d * 2
    check()
    held = w.d
    held *= 3
    check()
    held *= 2
    check()


def test_a_loaded_program_computes_what_depends_on_weights_alone_once(tmp_path):
    x, w = nn.Variable((2, 6)), leaf((4, 6), 1, need_grad=True)
    path = tmp_path / "net.nnlp"
    nn.save_program(path, {"y": F.affine(x, F.transpose(F.tanh(w), (1, 0)))}, {"x": x})
    found = nn.load_program(path)
    with nn.profile() as p:
        for k in range(3):
            got = found.run(x=np.full((2, 6), k))["y"]
            np.testing.assert_allclose(got, np.full((2, 6), k) @ np.tanh(w.d).T, rtol=1e-5)
    assert [e.op for e in p.events].count("transpose") == 1


def test_values_made_of_weights_that_a_step_writes_are_made_at_every_run(tmp_path):
    x, w = nn.Variable((4, 3, 2, 2)), leaf((1, 3, 1, 1), 1, need_grad=True)
    one = nn.Variable.from_numpy_array(np.ones((1, 3, 1, 1), np.float32))
    mean = w * 2  # a running mean that the normalization moves
    y = F.batch_normalization(x, None, None, mean, one * 1, decay_rate=0.5)
    nn.save_program(tmp_path / "net.nnlp", {"y": y, "mean": mean}, {"x": x})
    found = nn.load_program(tmp_path / "net.nnlp")
    images = np.random.default_rng(0).normal(size=x.shape).astype(np.float32)
    wanted = w.d * 2 * 0.5 + 0.5 * images.mean((0, 2, 3), keepdims=True)
    for _ in range(3):
        np.testing.assert_allclose(found.run(x=images)["mean"], wanted, rtol=1e-5, atol=1e-6)


def training_net(x, residual):
    h = PF.convolution(x, 8, (3, 3), pad=(1, 1), with_bias=False, name="c1")
    h = F.relu(PF.batch_normalization(h, name="n1"))
    g = PF.batch_normalization(
        PF.convolution(h, 8, (3, 3), pad=(1, 1), with_bias=False, name="c2"), name="n2"
    )
    return F.mean(F.relu(g + h if residual else g) ** 2)


@pytest.mark.parametrize("function", ["batch_normalization", "layer_normalization"])
def test_gradients_of_statistics_that_nobody_reads_are_left_out(function):
    x = leaf((4, 3, 5, 5))
    results = {}
    for backend in ("numpy", "cpu"):
        nn.clear_parameters()
        with nn.context_scope(nn.Context([f"{backend}:float"])):
            y = F.sum(getattr(PF, function)(x) ** 3)
            x.grad.zero()
            y.forward(clear_no_need_grad=True)
            y.backward(clear_buffer=True)
            results[backend] = x.g.copy()
    steps = session_of([y]).plans["train"].plan.steps
    (step,) = [s for s in steps if s.op == "normalization_backward"]
    assert step.ins[1:3] == (0, 0) and step.kernel is not None
    np.testing.assert_allclose(results["cpu"], results["numpy"], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("residual", [False, True])
def test_batch_normalization_relu_and_addition_are_one_step_both_ways(residual):
    x = leaf((2, 3, 9, 7))
    results = {}
    for backend in ("numpy", "cpu"):
        nn.clear_parameters()
        nn.seed(3)
        with nn.context_scope(nn.Context([f"{backend}:float"])):
            y = training_net(x, residual)
            for p in nn.get_parameters().values():
                p.grad.zero()
            y.forward(clear_no_need_grad=True)
            y.backward(clear_buffer=True)
            every = nn.get_parameters(grad_only=False)
            results[backend] = [y.d.copy()] + [p.d.copy() for p in every.values()]
            results[backend] += [p.g.copy() for p in nn.get_parameters().values()]
    steps = session_of([y]).plans["train"].plan.steps
    assert [s.op for s in steps if not s.second].count("fused_batch_normalization") == 2
    names = [s.op for s in steps]
    assert names.count("batch_normalization_backward_fused") == 2
    assert not {"relu", "gate", "normalization_backward"} & set(names)
    for a, b in zip(results["cpu"], results["numpy"], strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def test_what_a_normalization_gave_is_computed_again_rather_than_kept():
    x = leaf((2, 3, 9, 7))
    y = training_net(x, residual=False)
    y.forward(clear_no_need_grad=True)
    plan = session_of([y]).plans["train"].plan
    again = [s for s in plan.steps if s.second and s.op == "fused_batch_normalization"]
    assert len(again) == 2 and not any(s.writes or s.attrs["batch_stat"] for s in again)
    reader = plan.steps[plan.steps.index(again[0]) + 1]
    assert again[0].outs[0] in reader.ins  # while it is in cache


def test_without_clearing_every_intermediate_stays_readable():
    x = leaf((2, 3, 9, 7))
    h = PF.convolution(x, 8, (3, 3), pad=(1, 1))
    n = PF.batch_normalization(h)
    y = F.relu(n)
    y.forward()
    np.testing.assert_allclose(y.d, np.maximum(n.d, 0), rtol=1e-6)
    assert h.d.shape == (2, 8, 9, 7) and np.isfinite(h.d).all()
    p = nn.get_parameters()
    want = reference(lambda: F.convolution(x, p["conv/W"], p["conv/b"], pad=(1, 1)))
    np.testing.assert_allclose(h.d, want, rtol=1e-4, atol=1e-5)


def test_results_stay_channels_last_until_somebody_looks():
    x = leaf((2, 3, 8, 8))
    h = PF.convolution(x, 8, (3, 3), pad=(1, 1))
    h.forward()
    assert list(h.data.bufs) == ["channels_last"]
    before = h.data.read("channels_last").copy()
    np.testing.assert_array_equal(h.d, np.moveaxis(before, -1, 1))


def test_the_updates_of_all_parameters_are_one_step():
    x = leaf((4, 5))
    y = F.mean(PF.affine(F.relu(PF.affine(x, 6, name="a")), 2, name="b"))
    solver = S.Momentum(0.1)
    solver.set_parameters(nn.get_parameters())
    y.forward(clear_no_need_grad=True)
    y.backward(clear_buffer=True)
    solver.update()
    (plan,) = solver._plans.values()
    assert [s.op for s in plan.plan.steps] == ["multi_update"]


def test_what_kernels_append_is_what_their_op_says():
    check_appending(native.library())


def test_what_kernels_say_is_about_inputs_and_outputs_that_ops_have():
    lib = native.library()
    assert lib.abilities("convolution_fused").last_in == (0, 3)
    assert lib.abilities("relu") == Abilities()
    for name in kernel_names(lib):
        can, op = lib.abilities(name), OPS[name]
        assert all(p < len(op.inputs) for p in (*can.last_in, *can.tiled_in))
        assert all(p < len(op.outputs) for p in (*can.last_out, *can.tiled_out))


# ---- verify ----


def program_of(y):
    return lower(capture([y.edge]), {y.edge.key})[0]


def test_verify_finds_a_step_before_its_input():
    p = program_of(F.exp(F.tanh(leaf((2,)))))
    p.steps.reverse()
    with pytest.raises(VerifyError, match="before anything makes it"):
        verify(p)


def test_verify_finds_a_slot_made_twice():
    p = program_of(F.exp(leaf((2,))))
    p.steps.append(p.steps[0])
    with pytest.raises(VerifyError, match="makes slot 2 again"):
        verify(p)


def test_verify_finds_a_result_that_nothing_makes():
    p = program_of(F.exp(leaf((2,))))
    p.steps.clear()
    with pytest.raises(VerifyError, match="slot 2 is kept and nothing makes it"):
        verify(p)


def test_verify_finds_the_parts_out_of_order():
    p = program_of(F.exp(F.tanh(leaf((2,)))))
    p.steps[0].second = True
    with pytest.raises(VerifyError, match="first part after the second"):
        verify(p)
