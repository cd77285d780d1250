# SPDX-License-Identifier: Apache-2.0
"""Measures of generated samples, images and videos against torchmetrics, scikit-image, SciPy."""

import numpy as np
import pytest

from nnl import metrics as M
from nnl.core.arrays.spec import ShapeError

rng = np.random.default_rng(0)
REAL = rng.normal(size=(90, 8)) @ rng.normal(size=(8, 8)) + 1
FAKE = rng.normal(size=(70, 8)) @ rng.normal(size=(8, 8))


def test_frechet_distance_has_the_root_of_scipy_and_parts_make_the_whole():
    linalg = pytest.importorskip("scipy.linalg")
    (a, b), shift = (np.cov(s.T) for s in (REAL, FAKE)), REAL.mean(0) - FAKE.mean(0)
    want = shift @ shift + np.trace(a + b - 2 * linalg.sqrtm(a @ b).real)
    moments = M.Moments()
    for part in np.split(REAL, [1, 20, 21]):
        moments.update(part)
    np.testing.assert_allclose(moments.covariance, a, rtol=1e-10)
    assert M.frechet_distance(moments, FAKE) == pytest.approx(want, rel=1e-8)
    assert M.frechet_distance(REAL, REAL) == pytest.approx(0, abs=1e-8)
    flat = np.hstack([REAL, REAL])  # of a covariance without an inverse
    assert M.frechet_distance(flat, flat + 1) == pytest.approx(16, rel=1e-6)


def test_generative_distances_are_those_of_torchmetrics():
    pytest.importorskip("torchmetrics")
    import torch
    from torchmetrics.image.fid import _compute_fid
    from torchmetrics.image.kid import poly_mmd

    given = [torch.tensor(s) for s in (REAL[:70], FAKE)]  # theirs are of one size
    moments = [m for s in given for m in (s.mean(0), torch.cov(s.T))]
    assert M.frechet_distance(REAL[:70], FAKE) == pytest.approx(
        float(_compute_fid(*moments)), rel=1e-6
    )
    assert M.kernel_distance(REAL[:70], FAKE) == pytest.approx(float(poly_mmd(*given)), rel=1e-8)


def test_kernel_distance_of_parts_is_unbiased():
    whole = M.kernel_distance(REAL, FAKE)
    drawn = [M.kernel_distance(REAL, FAKE, 40, 200, seed) for seed in (0, 1)]
    assert drawn[0] != drawn[1]
    np.testing.assert_allclose(drawn, whole, rtol=0.1)


def test_precision_and_recall_find_what_is_missing():
    """Half of the modes, all of good quality; and good ones beside bad ones."""
    centres = np.array([[0.0, 0], [100, 0]])
    two = (centres[:, None] + rng.normal(size=(2, 50, 2))).reshape(-1, 2)
    one = rng.normal(size=(100, 2))
    found = M.precision_recall_of_features(two, one)
    assert found["precision"] > 0.85 and 0.4 < found["recall"] <= 0.5 >= found["coverage"]
    found = M.precision_recall_of_features(one, two)
    assert found["recall"] > 0.85 and 0.4 < found["precision"] <= 0.5
    neighbors = pytest.importorskip("sklearn.neighbors").NearestNeighbors
    reach = neighbors(n_neighbors=3).fit(REAL).kneighbors()[0][:, -1]  # without the sample itself
    inside = np.linalg.norm(REAL[:, None] - FAKE[None], axis=2) <= reach[:, None]
    found = M.precision_recall_of_features(REAL, FAKE)
    assert found["precision"] == pytest.approx(inside.any(0).mean())
    assert found["density"] == pytest.approx(inside.sum() / 3 / len(FAKE))
    assert found["coverage"] == pytest.approx(inside.any(1).mean())


def test_image_measures_are_those_of_scikit_image():
    skimage = pytest.importorskip("skimage.metrics")
    from skimage.data import astronaut

    a = astronaut()[:64, 100:180].transpose(2, 0, 1)[None].repeat(2, 0) / 255
    b = (a + rng.normal(size=a.shape) * np.array([0.02, 0.2])[:, None, None, None]).clip(0, 1)
    for i in range(2):
        want = skimage.peak_signal_noise_ratio(a[i], b[i], data_range=1)
        assert M.psnr(a, b)[i] == pytest.approx(want)
        want = skimage.structural_similarity(
            a[i],
            b[i],
            channel_axis=0,
            data_range=1,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
        )
        assert M.ssim(a, b)[i] == pytest.approx(want, rel=1e-9)
    assert M.psnr(a, a)[0] == np.inf and M.ssim(a, a)[0] == pytest.approx(1)


def test_perceptual_distance_ignores_length_and_weighs_channels():
    a, b = rng.normal(size=(2, 3, 5, 4, 4))
    assert M.perceptual_distance([a], [3 * a]) == pytest.approx(0, abs=1e-12)
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b)]
    apart = ((unit[0] - unit[1]) ** 2).mean((2, 3))
    w = rng.random(5)
    found = M.perceptual_distance([a, b], [b, a], [w, np.zeros(5)])
    np.testing.assert_allclose(found, apart @ w, rtol=1e-8)


def test_a_moving_picture_is_consistent_along_its_flow():
    picture = rng.random((1, 3, 20, 30))
    frames = np.concatenate([picture[:, :, k : k + 12, 2 * k : 2 * k + 16] for k in range(5)])
    flow = np.broadcast_to(np.array([2.0, 1])[:, None, None], (4, 2, 12, 16))
    assert M.warping_error(frames, flow) == pytest.approx(0, abs=1e-12)
    assert M.warping_error(frames, 0 * flow) > 0.05
    half, _ = M.warp(picture, np.full((1, 2, 20, 30), 0.5))
    corners = [picture[:, :, i : i + 19, j : j + 29] for i in (0, 1) for j in (0, 1)]
    np.testing.assert_allclose(half[:, :, :19, :29], sum(corners) / 4)
    bad = frames.copy()
    bad[2, :, :6] = 0
    masks = np.zeros((4, 1, 12, 16), bool)
    masks[:, :, 7:] = True
    assert M.warping_error(bad, flow, masks) < 1e-12 < M.warping_error(bad, flow)


def test_inception_score_is_one_where_all_look_the_same():
    assert M.inception_score(np.full((5, 4), 0.25)) == pytest.approx(1)
    assert M.inception_score(np.eye(4)) == pytest.approx(4)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: M.frechet_distance(REAL, FAKE[:, :3]), ShapeError, "a has 8 features a sample, b"),
        (lambda: M.frechet_distance(REAL[:1], FAKE), ValueError, "there are 1 samples, wanted 2"),
        (lambda: M.kernel_distance(REAL, FAKE, 80), ValueError, "subset_size is 80, wanted 2 to"),
        (lambda: M.kernel_distance(REAL, FAKE[:1]), ValueError, "sets have 90 and 1 samples"),
        (lambda: M.precision_recall_of_features(REAL, FAKE, 0), ValueError, "k is 0, wanted 1 to"),
        (lambda: M.inception_score([[1.0, 1.0]]), ValueError, "do not sum to 1"),
        (lambda: M.psnr(np.ones((2, 2)), 0), ShapeError, r"truth has the shape \(2, 2\), wanted 4"),
        (lambda: M.psnr(np.ones((1,) * 4), np.ones((1, 1, 1, 2))), ShapeError, "wanted the same"),
        (lambda: M.ssim(np.ones((1, 1, 9, 9)), np.ones((1, 1, 9, 9))), ShapeError, "at least 11"),
        (lambda: M.psnr(*np.ones((2, 1, 1, 1, 1)), 0), ValueError, "data_range is 0, wanted more"),
        (lambda: M.perceptual_distance([1], []), ShapeError, "there are 1 layers of a, 0 of b"),
        (
            lambda: M.perceptual_distance(*np.ones((2, 1, 1, 2, 1, 1)), [[1.0]]),
            ShapeError,
            "layer 0 has 2 channels, 1 weights",
        ),
        (lambda: M.warp(np.ones((1, 1, 2, 2)), np.ones((1, 2, 2, 3))), ShapeError, "flow has the"),
        (lambda: M.warping_error(np.ones((1,) * 4), []), ShapeError, "wanted two or more"),
        (
            lambda: M.warping_error(np.ones((2, 1, 1, 1)), np.full((1, 2, 1, 1), 9.0)),
            ValueError,
            "no place of any frame came from within",
        ),
    ],
)
def test_bad_arguments_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_features_of_another_length_leave_moments_as_they_were():
    moments = M.Moments()
    moments.update(REAL)
    with pytest.raises(ShapeError, match=r"features have the shape \(2, 3\), wanted \(N, 8\)"):
        moments.update(np.ones((2, 3)))
    assert moments.count == len(REAL)
