# SPDX-License-Identifier: Apache-2.0
"""random_crop, random_flip, random_shift, random_erase and image_augmentation."""

import numpy as np
import pytest

import nnl as nn
from nnl import functions as F
from nnl.core.arrays.spec import ShapeError


@pytest.fixture(autouse=True)
def _seeded():
    nn.seed(4)
    with nn.auto_forward():
        yield


def counted(*shape):
    """1, 2, 3, ... in this shape."""
    a = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    return nn.Variable.from_numpy_array(a, need_grad=True)


def test_random_crop_is_a_window_of_each_sample_at_every_position():
    x = counted(200, 1, 3, 4)
    y = F.random_crop(x, (2, 2)).d
    seen = set()
    for sample, crop in zip(x.d[:, 0], y[:, 0], strict=True):
        r, c = np.argwhere(sample == crop[0, 0])[0]
        np.testing.assert_array_equal(crop, sample[r : r + 2, c : c + 2])
        seen.add((r, c))
    assert seen == {(r, c) for r in range(2) for c in range(3)}


def test_random_crop_gives_all_channels_the_same_window():
    y = F.random_crop(counted(5, 3, 6, 6), (2, 2)).d
    np.testing.assert_array_equal(y[:, 1] - y[:, 0], 36)


def test_random_crop_with_base_axis_zero_draws_once():
    y = F.random_crop(counted(5, 1, 1, 9), (3,), base_axis=0).d
    assert len(np.unique((y[..., 0] - 1) % 9)) == 1


def test_gradient_of_random_crop_lands_where_the_window_was():
    x = counted(3, 4, 4)
    y = F.random_crop(x, (2, 3))
    y.backward()
    np.testing.assert_array_equal(np.sort(x.d[x.g == 1]), np.sort(y.d.ravel()))
    assert x.g.sum() == 18


def test_random_flip_reverses_half_of_the_samples():
    x = counted(400, 3)
    y = F.random_flip(x).d
    flipped = (y == x.d[:, ::-1]).all(1)
    assert (flipped | (y == x.d).all(1)).all()
    assert 120 < flipped.sum() < 280  # 8 standard deviations


def test_random_flip_draws_for_each_axis():
    x = counted(300, 2, 2)
    y = F.random_flip(x, (1, 2)).d
    kinds = {tuple((b - 4 * i - 1).ravel()) for i, b in enumerate(y)}
    assert kinds == {(0, 1, 2, 3), (1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0)}


def test_random_flip_of_an_axis_of_samples_flips_the_whole_array():
    x = counted(4, 3)
    kinds = {tuple(F.random_flip(x, (0,)).d[:, 0]) for _ in range(40)}
    assert kinds == {(1, 4, 7, 10), (10, 7, 4, 1)}


@pytest.mark.parametrize(
    "mode,borders",
    [
        ("nearest", {-2: [1, 1, 1, 2], 2: [3, 4, 4, 4]}),
        ("reflect", {-2: [2, 1, 1, 2], 2: [3, 4, 4, 3]}),
        ("constant", {-2: [9, 9, 1, 2], 2: [3, 4, 9, 9]}),
    ],
)
def test_random_shift_fills_the_border(mode, borders):
    x = nn.Variable.from_numpy_array(np.tile(np.arange(1.0, 5.0, dtype=np.float32), (200, 1)))
    y = F.random_shift(x, (2,), mode, 9.0).d
    kinds = {tuple(row) for row in y}
    assert len(kinds) == 5
    assert {tuple(b) for b in borders.values()} | {(1, 2, 3, 4)} <= kinds


def test_random_shift_beyond_the_size_reflects_again():
    kinds = {tuple(F.random_shift(counted(1, 2), (5,), "reflect").d[0]) for _ in range(60)}
    assert kinds == {(1, 2), (2, 1), (1, 1), (2, 2)}


def test_gradient_of_random_shift_is_the_transpose():
    x = counted(6, 5)
    y = F.random_shift(x, (3,), "nearest")
    g = np.random.default_rng(0).normal(size=y.shape).astype(np.float32)
    y.backward(g)
    np.testing.assert_allclose((x.g * x.d).sum(), (g * y.d).sum(), rtol=1e-4)


def test_gradient_of_random_shift_is_zero_for_constants():
    x = counted(50, 2)
    F.random_shift(x, (2,), "constant", 1.0).backward()
    assert set(np.unique(x.g)) == {0, 1} and x.g.sum() < 100


def test_random_erase_overwrites_a_rectangle_of_every_channel():
    x = counted(20, 3, 8, 8)
    y = F.random_erase(x, prob=1.0, area_ratios=(0.2, 0.4), replacements=(-2.0, -1.0))
    erased = y.d < 0
    assert (erased == erased[:, :1]).all()
    assert (y.d[erased] >= -2).all() and (y.d[erased] < -1).all()
    for mask in erased[:, 0]:
        rows, columns = mask.any(1), mask.any(0)
        np.testing.assert_array_equal(mask, rows[:, None] & columns[None, :])
        assert 0.1 < mask.mean() < 0.5
    y.backward()
    np.testing.assert_array_equal(x.g, ~erased)


def test_random_erase_without_share_draws_for_each_channel():
    y = F.random_erase(counted(4, 3, 8, 8), prob=1.0, share=False, replacements=(-2.0, -1.0)).d < 0
    assert (y[:, 0] != y[:, 1]).any()


def test_random_erase_erases_with_probability_prob():
    y = F.random_erase(
        counted(400, 1, 6, 6), prob=0.25, area_ratios=(0.2, 0.3), replacements=(-2, -1)
    )
    share = (y.d < 0).any((1, 2, 3)).mean()
    assert 0.1 < share < 0.4


def test_random_erase_can_let_the_gradient_pass():
    x = counted(2, 1, 4, 4)
    F.random_erase(x, prob=1.0, ste_fine_grained=False).backward()
    np.testing.assert_array_equal(x.g, 1)


def test_random_erase_takes_channels_last():
    y = (
        F.random_erase(counted(9, 6, 6, 2), prob=1.0, channel_last=True, replacements=(-2, -1)).d
        < 0
    )
    assert y.any() and (y[..., 0] == y[..., 1]).all()


@pytest.mark.parametrize(
    "function,at",
    [
        (F.random_crop, {"shape": (2, 2)}),
        (F.random_flip, {"axes": (-1,)}),
        (F.random_shift, {"shifts": (2, 2)}),
        (F.random_erase, {"prob": 1.0}),
    ],
)
def test_a_negative_base_axis_counts_from_the_end(function, at):
    x = nn.NdArray.from_numpy_array(np.arange(2 * 3 * 8 * 8, dtype=np.float32).reshape(2, 3, 8, 8))
    want = function(x, base_axis=1, seed=5, **at).data
    np.testing.assert_array_equal(function(x, base_axis=-3, seed=5, **at).data, want)
    with pytest.raises(ShapeError, match="base_axis -5"):
        function(x, base_axis=-5, seed=5, **at)


def test_image_augmentation_without_arguments_is_the_identity():
    x = counted(2, 3, 4, 5)
    y = F.image_augmentation(x)
    np.testing.assert_array_equal(y.d, x.d)
    assert not y.need_grad


def test_image_augmentation_pads_with_the_border_element():
    y = F.image_augmentation(counted(1, 2, 2), (1, 4, 4), pad=(1, 1)).d[0]
    want = np.array([[1, 1, 2, 2], [1, 1, 2, 2], [3, 3, 4, 4], [3, 3, 4, 4]])
    np.testing.assert_allclose(y, want, atol=1e-6)


def test_image_augmentation_cuts_a_piece_out():
    y = F.image_augmentation(counted(1, 6, 6), (1, 3, 3)).d[0]
    np.testing.assert_allclose(np.diff(y, axis=1), 1, atol=1e-4)
    np.testing.assert_allclose(np.diff(y, axis=0), 6, atol=1e-4)
    assert y.min() >= 1 and y.max() <= 36


def test_image_augmentation_magnifies():
    y = F.image_augmentation(counted(1, 8, 8), min_scale=2.0, max_scale=2.0).d[0]
    np.testing.assert_allclose(np.diff(y, axis=1)[:, 1:-1], 0.5, atol=1e-4)  # borders are stretched


def test_image_augmentation_flips_about_half_of_the_images():
    x = counted(200, 1, 2, 3)
    y = F.image_augmentation(x, flip_lr=True).d
    flipped = np.isclose(y, x.d[..., ::-1]).all((1, 2, 3))
    assert (flipped | np.isclose(y, x.d).all((1, 2, 3))).all() and 50 < flipped.sum() < 150
    y = F.image_augmentation(x, flip_ud=True).d
    assert 50 < np.isclose(y, x.d[:, :, ::-1]).all((1, 2, 3)).sum() < 150


def test_image_augmentation_turns_about_the_centre():
    grid = np.arange(21) - 10.0
    x = np.tile(grid[:, None] ** 2 + grid[None, :] ** 2, (5, 1, 1, 1)).astype(np.float32)
    y = F.image_augmentation(nn.Variable.from_numpy_array(x), angle=3.0).d
    inside = x <= 64  # no position outside is read there; the values do not depend on the angle
    np.testing.assert_allclose(y[inside], x[inside], atol=0.6)  # bilinear: up to 1/2 too high


def test_image_augmentation_adds_light_and_contrast_about_the_centre():
    x = counted(3, 2, 2, 2)
    y = F.image_augmentation(x, brightness=1.0).d - x.d
    np.testing.assert_allclose(y, np.broadcast_to(y[:, :1, :1, :1], y.shape), atol=1e-5)
    assert np.abs(y).max() <= 1 and len(np.unique(y[:, 0, 0, 0].round(4))) == 3
    y = F.image_augmentation(x, brightness=1.0, brightness_each=True).d - x.d
    assert np.abs(y[:, 0] - y[:, 1]).min() > 1e-4
    y = (F.image_augmentation(x, contrast=2.0, contrast_center=5.0).d - 5) / (x.d - 5 + 1e-20)
    factor = y[0, 0, 0, 0]
    assert 0.5 <= factor <= 2 and abs(factor - y[0, 1, 1, 1]) < 1e-4


def test_image_augmentation_adds_noise_of_the_given_deviation():
    x = nn.Variable.from_numpy_array(np.zeros((20, 1, 30, 30), np.float32))
    y = F.image_augmentation(x, noise=0.5).d
    assert abs(y.std() - 0.5) < 0.02 and abs(y.mean()) < 0.02


@pytest.mark.parametrize(
    "call,text",
    [
        (lambda: F.random_crop(counted(2, 4), (5,)), r"random_crop: shape \(5,\) is no part of x"),
        (lambda: F.random_crop(counted(2), (1, 1)), r"random_crop: shape \(1, 1\) is no part of x"),
        (lambda: F.random_crop(counted(2), base_axis=3), r"base_axis 3 is outside \[0, 1\] for x"),
        (lambda: F.random_flip(counted(2), (1,)), r"random_flip: axis 1 is outside \[-1, 1\)"),
        (
            lambda: F.random_shift(counted(2), (1, 1)),
            r"random_shift: shifts \(1, 1\) has more axes",
        ),
        (
            lambda: F.random_erase(counted(2, 4, 4)),
            r"random_erase: x .* has 2 axes from base_axis 1",
        ),
        (
            lambda: F.image_augmentation(counted(4)),
            r"image_augmentation: shape \(4,\) is no height",
        ),
        (
            lambda: F.image_augmentation(counted(1, 4, 4), (2, 4, 4)),
            r"shape \(2, 4, 4\) is no height",
        ),
    ],
)
def test_shapes_are_checked(call, text):
    with pytest.raises(ShapeError, match=text):
        call()


@pytest.mark.parametrize(
    "call,text",
    [
        (lambda: F.random_shift(counted(2), (-1,)), r"shifts is \(-1,\), wanted numbers >= 0"),
        (lambda: F.random_shift(counted(2), (1,), "wrap"), r"border_mode is 'wrap', wanted one of"),
        (lambda: F.random_erase(counted(1, 1, 2, 2), 1.5), r"prob is 1.5, wanted 0 <= prob <= 1"),
        (
            lambda: F.random_erase(counted(1, 1, 2, 2), n=0),
            r"random_erase: n is 0, wanted at least 1",
        ),
        (
            lambda: F.random_erase(counted(1, 1, 2, 2), area_ratios=(0.1,)),
            r"area_ratios is \(0.1,\), wanted \(lowest, highest\)",
        ),
        (
            lambda: F.image_augmentation(counted(1, 2, 2), contrast=0),
            r"contrast is 0.0, wanted more",
        ),
        (
            lambda: F.image_augmentation(counted(1, 2, 2), pad=(1,)),
            r"pad is \(1,\), wanted two numbers",
        ),
    ],
)
def test_attributes_are_checked(call, text):
    with pytest.raises(ValueError, match=text):
        call()
