# SPDX-License-Identifier: Apache-2.0
"""The bridge to NNabla, checked on NNabla alone against arithmetic done by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.interop.bridge import Initializer, Nnabla, NnablaError, WorkerDied

pytestmark = pytest.mark.interop


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_the_worker_is_nnabla_1_39(nnabla: Nnabla) -> None:
    nnabla.exec("")
    assert nnabla.version.startswith("1.39")


def test_function_gives_output_and_input_gradient(nnabla: Nnabla) -> None:
    x, gy = normal(3, 4), normal(3, 4, seed=1)
    r = nnabla.function("relu", [x], grads=[gy])
    np.testing.assert_array_equal(r.outputs[0], np.maximum(x, 0))
    np.testing.assert_array_equal(r.grads[0], gy * (x > 0))
    np.testing.assert_array_equal(r.inputs[0], x)


def test_function_without_output_gradients_runs_no_backward(nnabla: Nnabla) -> None:
    assert nnabla.function("relu", [normal(2)]).grads == [None]


def test_only_inputs_that_need_it_get_a_gradient(nnabla: Nnabla) -> None:
    a, b, gy = normal(2, 3), normal(2, 3, seed=1), normal(2, 3, seed=2)
    r = nnabla.function("mul2", [a, b], need_grad=[False, True], grads=[gy])
    assert r.grads[0] is None
    np.testing.assert_allclose(r.grads[1], gy * a, rtol=1e-6)


def test_an_input_can_be_left_out(nnabla: Nnabla) -> None:
    x, w = normal(2, 3), normal(3, 4, seed=1)
    r = nnabla.function("affine", [x, w, None], grads=[np.ones((2, 4), np.float32)])
    np.testing.assert_allclose(r.outputs[0], x @ w, rtol=1e-5, atol=1e-6)
    assert r.inputs[2] is None and r.grads[2] is None


def test_every_output_takes_its_own_gradient(nnabla: Nnabla) -> None:
    x = normal(2, 3)
    g = normal(2, seed=1)
    r = nnabla.function("split", [x], grads=[None, g, None], axis=1)
    assert len(r.outputs) == 3
    np.testing.assert_array_equal(r.grads[0], np.stack([0 * g, g, 0 * g], 1))


def test_written_inputs_come_back(nnabla: Nnabla) -> None:
    x = normal(8, 2)
    rows = [np.full((1, 2), v, np.float32) for v in (0, 1, 0, 1)]  # beta, gamma, mean, variance
    need = [True, True, True, False, False]
    r = nnabla.function("batch_normalization", [x, *rows], need, axes=(1,), decay_rate=0.9)
    np.testing.assert_allclose(r.inputs[3], 0.1 * x.mean(0, keepdims=True), rtol=1e-4, atol=1e-7)


def test_input_dtype_is_kept(nnabla: Nnabla) -> None:
    labels = np.array([[1], [0]], np.int64)
    r = nnabla.function("one_hot", [labels], need_grad=False, shape=(3,))
    assert r.inputs[0] is not None and r.inputs[0].dtype == np.int64
    np.testing.assert_array_equal(r.outputs[0], np.eye(3)[[1, 0]])


def test_function_seed_repeats_the_draw(nnabla: Nnabla) -> None:
    draws = [nnabla.function("rand", [], seed=s, shape=(4,)).outputs[0] for s in (7, 7, 8)]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])


def test_a_complaint_of_nnabla_is_raised_and_the_worker_lives(nnabla: Nnabla) -> None:
    with pytest.raises(NnablaError, match="Dimensions of inputs must match") as caught:
        nnabla.function("add2", [normal(2, 3), normal(3)])
    assert caught.value.kind == "RuntimeError"
    assert nnabla.function("abs", [normal(2)]).outputs[0].shape == (2,)


def test_a_wrong_number_of_output_gradients_is_named(nnabla: Nnabla) -> None:
    with pytest.raises(NnablaError, match="relu has 1 outputs, 2 gradients came"):
        nnabla.function("relu", [normal(2)], grads=[normal(2), normal(2)])


def test_parametric_gives_parameters_with_values_and_gradients(nnabla: Nnabla) -> None:
    x, gy = normal(5, 3), normal(5, 2, seed=1)
    r = nnabla.parametric("affine", [x], grads=[gy], n_outmaps=2, scope="fc")
    assert list(r.parameters) == ["fc/affine/W", "fc/affine/b"]
    w, b = r.parameters.values()
    assert w.first.shape == (3, 2) and b.first.shape == (2,) and w.need_grad and b.need_grad
    # uniform within +-sqrt(6 / (fan in + fan out)), drawn from RandomState(313) at import
    bound = np.sqrt(6 / (3 + 2))
    drawn = np.random.RandomState(313).uniform(-bound, bound, (3, 2)).astype(np.float32)
    np.testing.assert_array_equal(w.first, drawn)
    np.testing.assert_allclose(r.outputs[0], x @ w.value, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(w.grad, x.T @ gy, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(b.grad, gy.sum(0), rtol=1e-5, atol=1e-6)


def test_parametric_seed_sets_the_initial_weights(nnabla: Nnabla) -> None:
    bound = np.sqrt(6 / (3 + 2))
    r = nnabla.parametric("affine", [normal(1, 3)], seed=11, n_outmaps=2)
    drawn = np.random.RandomState(11).uniform(-bound, bound, (3, 2)).astype(np.float32)
    np.testing.assert_array_equal(r.parameters["affine/W"].first, drawn)


def test_parametric_takes_initializers_arrays_and_given_parameters(nnabla: Nnabla) -> None:
    x, w = normal(2, 3), normal(3, 2, seed=1)
    constant = Initializer("ConstantInitializer", [2.5])
    r = nnabla.parametric("affine", [x], n_outmaps=2, w_init=w, b_init=constant)
    np.testing.assert_allclose(r.outputs[0], x @ w + 2.5, rtol=1e-5, atol=1e-6)
    r = nnabla.parametric("affine", [x], n_outmaps=2, parameters={"affine/W": w}, with_bias=False)
    np.testing.assert_allclose(r.outputs[0], x @ w, rtol=1e-5, atol=1e-6)


def test_parametric_tells_running_statistics_from_weights(nnabla: Nnabla) -> None:
    x = normal(8, 2) + 3
    r = nnabla.parametric("batch_normalization", [x], axes=[1])
    need = {name.rpartition("/")[2]: p.need_grad for name, p in r.parameters.items()}
    assert need == {"beta": True, "gamma": True, "mean": False, "var": False}
    mean = r.parameters["bn/mean"]
    assert not mean.first.any() and mean.value.all()  # the forward moved it


def test_solver_follows_adam_step_by_step(nnabla: Nnabla) -> None:
    w = normal(4)
    grads = [normal(4, seed=s) for s in (1, 2, 3)]
    steps = nnabla.solver("Adam", {"w": w}, [{"w": g} for g in grads], alpha=0.01)
    mean, var, x = np.zeros(4), np.zeros(4), w.astype(np.float64)
    for t, (g, step) in enumerate(zip(grads, steps, strict=True), 1):
        mean, var = 0.9 * mean + 0.1 * g, 0.999 * var + 0.001 * g * g
        rate = 0.01 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)  # eps is outside the correction
        x = x - rate * mean / (np.sqrt(var) + 1e-8)
        np.testing.assert_allclose(step.weights["w"], x, rtol=1e-5)
        np.testing.assert_allclose(step.states["w"]["mean"], mean, rtol=1e-5)
        np.testing.assert_allclose(step.states["w"]["var"], var, rtol=1e-4)
        assert step.t == {"w": t}


def test_solver_applies_weight_decay_on_the_steps_that_name_it(nnabla: Nnabla) -> None:
    w, g = normal(3), normal(3, seed=1)
    steps = nnabla.solver("Sgd", {"w": w}, [{"w": g}] * 2, weight_decay=[None, 0.1], lr=0.5)
    first = w - 0.5 * g
    np.testing.assert_allclose(steps[0].weights["w"], first, rtol=1e-6)
    np.testing.assert_allclose(steps[1].grads["w"], g + 0.1 * first, rtol=1e-6)
    np.testing.assert_allclose(steps[1].weights["w"], first - 0.5 * (g + 0.1 * first), rtol=1e-5)


def test_solver_calls_run_before_the_update_and_return(nnabla: Nnabla) -> None:
    w, g = normal(3), np.array([1, np.nan, 2], np.float32)
    calls = [[["check_nan_grad"], ["set_learning_rate", 0.0]]]
    (step,) = nnabla.solver("Sgd", {"w": w}, [{"w": g}], calls=calls)
    assert step.returned == [True, None] and step.learning_rate == 0.0


def test_solver_leaves_a_parameter_without_gradient_alone(nnabla: Nnabla) -> None:
    w, g = normal(3), normal(3, seed=1)
    steps = nnabla.solver("Momentum", {"w": w}, [{"w": g}, {"w": None}], lr=0.1)
    np.testing.assert_array_equal(steps[1].weights["w"], steps[0].weights["w"])
    assert steps[1].t == {"w": 1}


def test_exec_runs_a_training_loop(nnabla: Nnabla) -> None:
    text = """
x = nn.Variable.from_numpy_array(inputs["x"])
loss = F.mean(PF.affine(x, 1) ** 2)
solver = S.Sgd(lr=0.1)
solver.set_parameters(nn.get_parameters())
curve = []
for _ in range(5):
    loss.forward()
    solver.zero_grad()
    loss.backward()
    solver.update()
    curve.append(float(loss.d))
outputs["curve"] = curve
outputs["W"] = nn.get_parameters()["affine/W"].d
"""
    out = nnabla.exec(text, {"x": normal(6, 3)})
    assert out["curve"].shape == (5,) and (np.diff(out["curve"]) < 0).all()
    assert out["W"].shape == (3, 1) and out["W"].dtype == np.float32


def test_requests_do_not_see_each_others_parameters(nnabla: Nnabla) -> None:
    text = 'outputs["n"] = len(nn.get_parameters()); PF.affine(nn.Variable((1, 2)), 3)'
    assert [int(nnabla.exec(text)["n"]) for _ in range(2)] == [0, 0]


def test_a_crash_is_reported_with_stderr_and_the_next_request_restarts(nnabla: Nnabla) -> None:
    text = 'import os, sys; sys.stderr.write("last words"); sys.stderr.flush(); os._exit(3)'
    with pytest.raises(WorkerDied, match="ended during the request(.|\n)*last words"):
        nnabla.exec(text)
    assert nnabla.function("abs", [normal(2)]).outputs[0].shape == (2,)


def test_no_answer_in_time_ends_the_worker(nnabla: Nnabla) -> None:
    hasty = Nnabla(nnabla.python, timeout_s=0.01)
    with pytest.raises(WorkerDied, match="gave no answer in 0.01 s"):
        hasty.exec("")
    hasty.close()
