# SPDX-License-Identifier: Apache-2.0
"""The digits example's data: shapes, a split that never moves, resizing and variation."""

from __future__ import annotations

import numpy as np
import pytest

datasets = pytest.importorskip("sklearn.datasets")

from examples.digits import data  # noqa: E402  (after the check that scikit-learn is there)


@pytest.fixture(scope="module")
def digits() -> data.Digits:
    return data.load_digits_28x28()


def test_shapes_dtypes_and_range(digits: data.Digits) -> None:
    for x, y, n in ((digits.x_train, digits.y_train, 1438), (digits.x_test, digits.y_test, 359)):
        assert x.shape == (n, 1, 28, 28) and x.dtype == np.float32
        assert y.shape == (n, 1) and y.dtype == np.int32
        assert x.min() == 0 and 0.99 < x.max() <= 1
        assert set(np.unique(y)) == set(range(10))


def test_the_split_takes_a_fifth_of_every_class(digits: data.Digits) -> None:
    train, test = (np.bincount(y[:, 0]) for y in (digits.y_train, digits.y_test))
    assert np.abs(test / (train + test) - 0.2).max() < 0.004


def test_the_split_is_the_same_every_time(digits: data.Digits) -> None:
    again = data.load_digits_28x28()
    np.testing.assert_array_equal(again.x_test, digits.x_test)
    np.testing.assert_array_equal(again.y_train, digits.y_train)


def test_train_and_test_together_are_the_whole_set_once(digits: data.Digits) -> None:
    whole = data.resize(datasets.load_digits().images / 16, 28).astype(np.float32)
    both = np.concatenate([digits.x_train, digits.x_test])[:, 0]
    sums = [np.sort(a.sum((1, 2), dtype=np.float64)) for a in (whole, both)]
    np.testing.assert_array_equal(*sums)


def test_labels_stay_with_their_images(digits: data.Digits) -> None:
    # the nearest training image is of the same class nearly always, in 98.3 %
    a, b = (x.reshape(len(x), -1) for x in (digits.x_test, digits.x_train))
    distance = (a * a).sum(1)[:, None] - 2 * a @ b.T + (b * b).sum(1)
    nearest = digits.y_train[distance.argmin(1)]
    assert (nearest == digits.y_test).mean() > 0.97


def test_resizing_keeps_constants_and_straight_lines() -> None:
    np.testing.assert_allclose(data.cubic_matrix(8, 28).sum(1), 1, rtol=1e-12)
    line = data.cubic_matrix(8, 28) @ np.arange(8.0)
    exact = (np.arange(28) + 0.5) * 8 / 28 - 0.5
    inner = (exact >= 1) & (exact <= 6)  # away from the repeated ends
    np.testing.assert_allclose(line[inner], exact[inner], rtol=1e-12)


def test_resizing_agrees_with_pytorch_bicubic_up_to_its_constant() -> None:
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).random((2, 8, 8))
    # antialias=True takes Keys' a = -1/2 (plain bicubic takes -3/4); enlarging, the two filters
    # are the same away from the border, which it renormalises instead of repeating
    y = torch.nn.functional.interpolate(
        torch.tensor(x)[None], size=(28, 28), mode="bicubic", antialias=True, align_corners=False
    )
    inner = slice(6, 22)
    ours = data.resize(x, 28)[:, inner, inner]
    np.testing.assert_allclose(ours, y[0].numpy().clip(0, 1)[:, inner, inner], rtol=1e-6)


def test_vary_without_movement_changes_nothing(digits: data.Digits) -> None:
    x = digits.x_test[:5]
    y = data.vary(x, np.random.default_rng(0), shift=0, rotate=0, scale=0)
    np.testing.assert_allclose(y, x, atol=1e-6)


def test_vary_agrees_with_scipy() -> None:
    ndimage = pytest.importorskip("scipy.ndimage")
    x = np.random.default_rng(0).random((1, 1, 28, 28))
    y = data.vary(x, np.random.default_rng(5), shift=2, rotate=10, scale=0.1)
    rng = np.random.default_rng(5)
    angle, factor = np.deg2rad(rng.uniform(-10, 10)), np.exp(rng.uniform(-0.1, 0.1))
    move = rng.uniform(-2, 2, 2)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) / factor
    centre = np.array([13.5, 13.5])
    offset = centre + move - turn @ centre
    expected = ndimage.affine_transform(x[0, 0], turn, offset, order=1, mode="nearest")
    np.testing.assert_allclose(y[0, 0], expected, rtol=1e-9)


def test_vary_moves_each_image_differently_and_leaves_its_input(digits: data.Digits) -> None:
    x = np.repeat(digits.x_test[:1], 4, axis=0)
    before = x.copy()
    y = data.vary(x, np.random.default_rng(0))
    assert y.shape == x.shape and y.dtype == np.float32
    assert len({image.tobytes() for image in y}) == 4
    assert y.min() >= 0 and y.max() <= 1
    np.testing.assert_array_equal(x, before)
