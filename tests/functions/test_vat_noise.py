# SPDX-License-Identifier: Apache-2.0
"""vat_noise: its value, what backward writes, and what it refuses."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F

V = nn.Variable.from_numpy_array


def arrays():
    return np.random.default_rng(0).normal(size=(2, 2, 3, 4)).astype(np.float32)


@pytest.mark.parametrize("base_axis", [0, 1, 2, -1])
def test_noise_has_length_eps_in_the_direction_of_x(base_axis):
    x, w = arrays()
    with nn.auto_forward():
        y = F.vat_noise(V(x), V(w), base_axis=base_axis, eps=2.5).d
    norm = np.sqrt((x**2).sum(axis=tuple(range(base_axis % 3, 3)), keepdims=True))
    np.testing.assert_allclose(y, 2.5 * x / norm, rtol=1e-5)


def test_backward_writes_eps_times_the_gradient_and_passes_none_on():
    x, w = map(V, arrays())
    x.need_grad = w.need_grad = True
    x.g, w.g = 5, 7
    y = F.vat_noise(x, w, eps=2.0)
    y.forward()
    np.testing.assert_array_equal(w.d, arrays()[1])
    g = np.random.default_rng(1).normal(size=y.shape).astype(np.float32)
    y.backward(g)
    np.testing.assert_allclose(w.d, 2 * g, rtol=1e-6)
    assert (x.g == 5).all() and (w.g == 7).all()


@pytest.mark.parametrize("need", [(True, False), (False, True)])
def test_w_is_written_if_either_input_needs_a_gradient(need):
    x, w = (V(a, need_grad=n) for a, n in zip(arrays(), need, strict=True))
    y = F.vat_noise(x, w)
    y.forward()
    y.backward(1)
    np.testing.assert_array_equal(w.d, 1)


def test_w_is_written_in_a_compiled_step():
    x, w = map(V, arrays())
    x.need_grad = True

    @nn.compile
    def step():
        F.sum(F.vat_noise(x, w) * 3).backward()

    for _ in range(2):
        w.d = 0
        step()
        np.testing.assert_array_equal(w.d, 3)


def test_repeated_steps_find_the_direction_in_which_a_loss_rises_fastest():
    rng = np.random.default_rng(0)
    a = rng.normal(size=(5, 5))
    a = a @ a.T
    with nn.context_scope(nn.Context(["cpu:double"])):
        r = V(rng.normal(size=(1, 5)), need_grad=True)
        noise = F.vat_noise(r, r)  # w is x: every backward is a step of power iteration
        loss = F.sum(noise * F.affine(noise, V(a))) * 0.5
        for _ in range(200):
            loss.forward()
            loss.backward()
        loss.forward()
    largest = np.linalg.eigvalsh(a)[-1]
    assert loss.d == pytest.approx(largest / 2, rel=1e-6)


def test_errors_name_what_came_and_what_was_wanted():
    x, w = map(V, arrays())
    with pytest.raises(ValueError, match="^vat_noise: .*x.*w"):
        F.vat_noise(x, V(np.zeros((2, 3))))
    with pytest.raises(ValueError, match=r"^vat_noise: axis 3 is outside \[-3, 3\) for x"):
        F.vat_noise(x, w, base_axis=3)
