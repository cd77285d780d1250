# SPDX-License-Identifier: Apache-2.0
"""Schedules against diffusers, penalties against PyTorch or what can be computed by hand."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.arrays.spec import ShapeError
from nnl.training import generative as G

rng = np.random.default_rng(0)
X = rng.normal(size=(2, 3, 4, 4)).astype(np.float32)


def predict(x, t):
    """Some smooth function of both; arrays and tensors."""
    return 0.4 * x + 0.1 * x * x - 0.0003 * float(t.max())


@pytest.mark.parametrize(
    ("kind", "theirs"),
    [
        ("linear", {"beta_schedule": "linear"}),
        ("scaled_linear", {"beta_schedule": "scaled_linear"}),
        ("cosine", {"beta_schedule": "squaredcos_cap_v2"}),
    ],
)
@pytest.mark.parametrize("predicts", ["epsilon", "sample", "v_prediction"])
def test_schedule_and_ddim_are_those_of_diffusers(kind, theirs, predicts, tmp_path):
    diffusers = pytest.importorskip("diffusers")
    import torch

    other = diffusers.DDIMScheduler(prediction_type=predicts, clip_sample=False, **theirs)
    other.save_pretrained(tmp_path)
    ours = G.NoiseSchedule.from_diffusers(tmp_path)
    np.testing.assert_allclose(ours.alphas_bar, other.alphas_cumprod.numpy(), rtol=2e-5)
    noise, t = rng.normal(size=X.shape).astype(np.float32), np.array([3, 800])
    given = [torch.tensor(a) for a in (X, noise, t)]
    want = other.add_noise(*given).numpy()
    np.testing.assert_allclose(ours.noisy(X, noise, t), want, rtol=1e-4, atol=1e-5)
    if predicts == "v_prediction":
        want = other.get_velocity(*given).numpy()
        np.testing.assert_allclose(ours.target(X, noise, t), want, rtol=1e-4, atol=1e-5)
    other.set_timesteps(10)
    x = torch.tensor(X)
    for step, state in zip(other.timesteps, ours.states(predict, X, 10), strict=True):
        x = other.step(predict(x, step), step, x).prev_sample
        np.testing.assert_allclose(state, x.numpy(), rtol=2e-3, atol=2e-3)


def test_all_steps_with_eta_1_are_ddpm():
    diffusers = pytest.importorskip("diffusers")
    import torch

    other = diffusers.DDPMScheduler(num_train_timesteps=8, beta_end=0.4)
    ours = G.NoiseSchedule(steps=8, last=0.4)
    noise = np.random.default_rng(5)
    states = ours.states(predict, X, 8, eta=1.0, seed=5)
    x = X
    for t, state in zip(range(7, -1, -1), states, strict=True):
        done = other.step(
            torch.tensor(predict(x, np.array([t]))), t, torch.tensor(x), generator=torch.Generator()
        )
        # theirs draws its own noise: the mean is what can be compared
        mean, bar = _posterior(ours, x, t)
        if t:
            z = noise.standard_normal(X.shape)
            sigma = np.sqrt(float(other._get_variance(t)))
            np.testing.assert_allclose(state, mean + sigma * z, rtol=1e-3, atol=1e-3)
        else:
            np.testing.assert_allclose(state, done.prev_sample.numpy(), rtol=1e-4, atol=1e-4)
        assert np.abs(done.prev_sample.numpy() - mean).max() < 5 * np.sqrt(1 - bar) + 1e-3
        x = state


def _posterior(schedule, x, t):
    """Ho et al., equation 7, of the image that is predicted."""
    bar = schedule.alphas_bar
    before = bar[t - 1] if t else 1.0
    alpha = bar[t] / before
    image, _ = schedule.parts(x, predict(x, np.array([t])), np.full(len(x), t))
    mean = np.sqrt(before) * (1 - alpha) * image + np.sqrt(alpha) * (1 - before) * x
    return mean / (1 - bar[t]), alpha


def test_the_true_noise_leads_back_to_the_image():
    for predicts in ("epsilon", "sample", "v_prediction"):
        schedule = G.NoiseSchedule(predicts=predicts, clip=None)
        noise = rng.normal(size=X.shape)
        last = np.full(2, 980)
        states = schedule.sample(
            lambda x, t, s=schedule, n=noise: s.target(X.astype(float), n, t.astype(int)),
            schedule.noisy(X.astype(float), noise, last),
            50,
        )
        np.testing.assert_allclose(states, X, atol=1e-6)


def test_heun_is_of_second_order():
    def error(steps):
        return abs(G.integrate(lambda x, t: t * x, np.ones(1), steps)[0] - np.exp(0.5))

    assert 3.5 < error(20) / error(40) < 4.5


def test_guidance_takes_one_run_of_both_and_none_where_it_is_0():
    calls = []

    def network(x, t, labels):
        calls.append(len(x))
        return x * labels[:, None, None, None]

    found = G.guided(network, np.array([2, 3]), 1, 0.5)(X, np.zeros(2))
    np.testing.assert_allclose(found, X * np.array([2.5, 4.0])[:, None, None, None], rtol=1e-6)
    G.guided(network, np.array([2, 3]), 1, 0)(X, np.zeros(2))
    assert calls == [4, 2]


def test_penalties_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    w1, w2 = (rng.normal(size=s).astype(np.float32) for s in ((48, 16), (16, 1)))

    def theirs(x):
        return torch.tanh(x.reshape(2, 48) @ t1) @ t2

    t1, t2 = (torch.tensor(w, requires_grad=True) for w in (w1, w2))
    x = torch.tensor(X, requires_grad=True)
    (g,) = torch.autograd.grad(theirs(x).sum(), x, create_graph=True)
    want = (g**2).sum((1, 2, 3)).mean()
    want.backward()
    p1, p2 = (nn.Variable.from_numpy_array(w, need_grad=True) for w in (w1, w2))

    def ours(x):
        return F.affine(F.tanh(F.affine(F.reshape(x, (2, 48)), p1)), p2)

    images = nn.Variable.from_numpy_array(X, need_grad=True)
    penalty = G.r1_penalty(ours(images), images)
    penalty.forward()
    p1.grad.zero()
    p2.grad.zero()
    penalty.backward()
    assert float(penalty.d) == pytest.approx(float(want), rel=1e-5)
    for p, t in ((p1, t1), (p2, t2)):
        np.testing.assert_allclose(p.g, t.grad.numpy(), rtol=1e-3, atol=1e-4)


def test_gradient_penalty_is_of_points_between_the_pairs():
    seen = []

    def squares(x):
        seen.append(x)
        return F.sum(x * x, axis=(1, 2, 3))

    real, fake = nn.Variable.from_numpy_array(X), nn.Variable.from_numpy_array(0 * X)
    penalty = G.gradient_penalty(squares, real, fake)
    nn.forward_all([penalty, seen[0]])
    share = seen[0].d / X
    assert np.ptp(share, axis=(1, 2, 3)).max() < 1e-4 and 0 < share.min() < share.max() < 1
    lengths = 2 * np.sqrt((seen[0].d ** 2).sum((1, 2, 3)))
    assert float(penalty.d) == pytest.approx(((lengths - 1) ** 2).mean(), rel=1e-4)


def test_path_length_of_a_linear_generator_is_that_of_its_matrix():
    """|J^T y| of an orthogonal map is |y|, about the root of the number of w by the pixels."""
    w = nn.Variable.from_numpy_array(rng.normal(size=(64, 16)).astype(np.float32), need_grad=True)
    mean = nn.Variable((1,))
    images = F.reshape(w, (64, 1, 4, 4)) * 3.0
    penalty = G.path_length(images, w, mean, decay=0.0)
    penalty.forward()
    assert float(mean.d[0]) == pytest.approx(3.0, rel=0.1)
    assert 0 < float(penalty.d) < 1.0


@pytest.mark.parametrize("kind", ["logistic", "least_squares", "hinge", "wasserstein"])
def test_losses_fall_where_each_side_is_better(kind):
    def of(fake, real=None):
        given = [
            None if s is None else nn.Variable.from_numpy_array(np.array([s])) for s in (fake, real)
        ]
        loss = G.adversarial_losses(kind, *given)
        loss.forward()
        return float(loss.d)

    assert of(0.0, 1.0) < of(0.0, 0.0) < of(0.5, 0.0)
    assert of(0.5) < of(0.0)


def test_pool_gives_back_what_it_was_given():
    pool = G.ImagePool(3, seed=1)
    given = np.arange(40.0).reshape(10, 4, 1)
    back = np.concatenate([pool.exchange(g) for g in given])
    assert set(back.ravel()) <= set(given.ravel()) and (back[3:] != given.reshape(40, 1)[3:]).any()
    np.testing.assert_array_equal(G.ImagePool(0).exchange(given), given)


def test_augmentation_is_likelier_where_the_discriminator_is_sure():
    augmentation = G.AdaptiveAugmentation(target=0.6, images=100)
    for _ in range(30):
        augmentation.update(np.ones(10))
    assert augmentation.probability == 0.8
    for _ in range(9):
        augmentation.update(np.array([1.0, -1] * 5))
    assert augmentation.probability == 0


def test_images_are_changed_as_often_as_is_said_and_have_gradients():
    x = nn.Variable.from_numpy_array(np.tile(X[:1], (60, 1, 1, 1)), need_grad=True)
    p = nn.Variable(())
    y = G.augmented(x, p)
    for value, share in ((0.0, 0.0), (1.0, 1.0)):
        p.d = value
        y.forward()
        changed = np.abs(y.d - x.d).max((1, 2, 3)) > 1e-3
        assert changed.mean() == share
    p.d = 0
    y.forward()
    x.grad.zero()
    y.backward()
    np.testing.assert_allclose(x.g, 1, atol=1e-4)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: G.NoiseSchedule("odd"), ValueError, "NoiseSchedule: kind is 'odd', wanted linear"),
        (lambda: G.NoiseSchedule(predicts="x"), ValueError, "predicts is 'x', wanted epsilon"),
        (lambda: G.NoiseSchedule(first=0), ValueError, "first 0 and last 0.02, wanted steps above"),
        (lambda: G.NoiseSchedule().times(0), ValueError, "0 steps, wanted 1 to 1000"),
        (lambda: G.NoiseSchedule().noisy(X, X, np.array([1000, 0])), ValueError, "or 1000, wanted"),
        (
            lambda: G.NoiseSchedule.from_diffusers("no"),
            ValueError,
            "no/scheduler_config.json is of",
        ),
        (lambda: G.adversarial_losses("odd", 0), ValueError, "kind is 'odd', wanted logistic"),
        (
            lambda: G.gradient_penalty(None, nn.Variable((2, 1)), nn.Variable((3, 1))),
            ShapeError,
            r"real has the shape \(2, 1\), fake \(3, 1\): wanted the same",
        ),
    ],
)
def test_bad_arguments_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call()
