# SPDX-License-Identifier: Apache-2.0
"""onnx_resize against PyTorch and the formulas of ONNX, and what it refuses."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F

V = nn.Variable.from_numpy_array
KIND = "coordinate_transformation_mode"


def resized(x, **at):
    with nn.context_scope(nn.Context(["cpu:double"])), nn.auto_forward():
        return F.onnx_resize(V(np.asarray(x, float)), **at).d


@pytest.mark.parametrize(
    "ours,theirs",
    [
        ({"mode": "linear"}, {"mode": "bilinear", "align_corners": False}),
        ({"mode": "linear", KIND: "align_corners"}, {"mode": "bilinear", "align_corners": True}),
        ({"mode": "cubic"}, {"mode": "bicubic", "align_corners": False}),
        ({"mode": "cubic", KIND: "align_corners"}, {"mode": "bicubic", "align_corners": True}),
        ({KIND: "asymmetric", "nearest_mode": "floor"}, {"mode": "nearest"}),
        ({"nearest_mode": "round_prefer_ceil"}, {"mode": "nearest-exact"}),
    ],
)
@pytest.mark.parametrize("size", [(9, 4), (3, 11), (1, 7)])
def test_equals_pytorch(ours, theirs, size):
    torch = pytest.importorskip("torch")
    from tests.functions.against_torch import compare

    compare(
        lambda x: F.onnx_resize(x, sizes=(2, 3, *size), **ours),
        lambda x: torch.nn.functional.interpolate(x, size, **theirs),
        np.random.default_rng(0).normal(size=(2, 3, 5, 6)),
    )


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_given_scales_are_used_as_they_are(mode):
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).normal(size=(1, 1, 5, 6))
    want = torch.nn.functional.interpolate(
        torch.tensor(x), scale_factor=(1.7, 0.7), mode=mode, recompute_scale_factor=False
    )
    got = resized(x, scales=(1, 1, 1.7, 0.7), mode={"bilinear": "linear"}.get(mode, "cubic"))
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-12)


@pytest.mark.parametrize(
    "kind,position",
    [
        ("half_pixel", lambda i, s, n, m: (i + 0.5) / s - 0.5),
        ("pytorch_half_pixel", lambda i, s, n, m: (i + 0.5) / s - 0.5),
        ("align_corners", lambda i, s, n, m: i * (n - 1) / (m - 1)),
        ("asymmetric", lambda i, s, n, m: i / s),
        ("tf_half_pixel_for_nn", lambda i, s, n, m: (i + 0.5) / s),
    ],
)
def test_positions_are_those_of_onnx(kind, position):
    n, s = 7, 1.9
    m = int(n * s)
    at = [position(i, s, n, m) for i in range(m)]
    want = np.interp(at, np.arange(n), np.arange(n) ** 2)
    got = resized(np.arange(n) ** 2, scales=(s,), mode="linear", **{KIND: kind})
    np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_a_crop_beyond_the_ends_is_extrapolated_and_has_no_gradient_there(mode):
    x = np.arange(6.0) * 2
    at = {"sizes": (5,), "roi": (-0.2, 1.2), KIND: "tf_crop_and_resize", "mode": mode}
    with nn.auto_forward():
        v = V(x, need_grad=True)
        y = F.onnx_resize(v, extrapolation_value=-7.0, **at)
        y.g = 0
        y.backward(np.array([100.0, 1, 1, 1, 100]))
    np.testing.assert_array_equal(y.d[[0, 4]], -7)
    assert v.g.sum() == pytest.approx(3, rel=1e-6)
    if mode == "linear":  # positions -1, 0.75, 2.5, 4.25 and 6
        np.testing.assert_allclose(y.d[1:4], [1.5, 5, 8.5], rtol=1e-6)


def test_one_pixel_of_a_crop_is_its_middle():
    at = {"sizes": (1,), "roi": (0.2, 0.6), KIND: "tf_crop_and_resize", "mode": "linear"}
    np.testing.assert_allclose(resized(np.arange(6) * 2, **at), [4], rtol=1e-12)


@pytest.mark.parametrize(
    "rounding,want",
    [("round_prefer_floor", 2), ("round_prefer_ceil", 3), ("floor", 2), ("ceil", 3)],
)
def test_halves_are_rounded_as_nearest_mode_says(rounding, want):
    # pixel 3 of 7 lies at 2.5 of 6, in the middle
    assert resized(np.arange(6), sizes=(7,), nearest_mode=rounding)[3] == want


def test_excluding_what_is_outside_keeps_a_constant_and_changes_only_the_ends():
    at = {"sizes": (16,), "mode": "cubic"}
    ones = resized(np.ones(8), exclude_outside=1, **at)
    np.testing.assert_allclose(ones, 1, rtol=1e-12)
    x = np.random.default_rng(0).normal(size=8)
    a, b = resized(x, **at), resized(x, exclude_outside=1, **at)
    np.testing.assert_allclose(a[3:-3], b[3:-3], rtol=1e-12)
    assert (a[[0, 1, 2, -1]] != b[[0, 1, 2, -1]]).all()


@pytest.mark.parametrize("kind", ["half_pixel", "tf_half_pixel_for_nn"])
def test_an_axis_of_scale_1_stays_as_it_is(kind):
    x = np.random.default_rng(0).normal(size=(3, 4))
    np.testing.assert_array_equal(resized(x, scales=(1, 1), mode="linear", **{KIND: kind}), x)


@pytest.mark.parametrize(
    "change,error,text",
    [
        ({"mode": "area"}, ValueError, r"mode is 'area', wanted one of \('nearest', 'linear'"),
        ({KIND: "center"}, ValueError, f"{KIND} is 'center', wanted one of"),
        ({"nearest_mode": "round"}, ValueError, "nearest_mode is 'round', wanted one of"),
        ({"scales": (2, 2)}, ValueError, "wanted exactly one of them"),
        ({"sizes": ()}, ValueError, r"scales is \(\) and sizes is \(\), wanted exactly one"),
        (
            {"sizes": (4,)},
            nn.core.arrays.spec.ShapeError,
            r"sizes \(4,\) has 1 numbers, wanted one for",
        ),
        ({"sizes": (3, -1)}, ValueError, r"sizes is \(3, -1\), wanted numbers >= 0"),
        ({"sizes": (), "scales": (1, -1)}, ValueError, "wanted numbers > 0"),
        (
            {"sizes": (), "scales": (1, 0.1)},
            nn.core.arrays.spec.ShapeError,
            r"resized to \(3, 0\): an a",
        ),
        (
            {KIND: "tf_crop_and_resize"},
            nn.core.arrays.spec.ShapeError,
            r"roi \(\) has 0 numbers, wanted",
        ),
        (
            {KIND: "tf_crop_and_resize", "roi": (0.5, 0, 1, 1)},
            ValueError,
            r"roi is \(0.5, 1.0\) for axis 0, which is not resized; wanted \(0.0, 1.0\)",
        ),
    ],
)
def test_errors_name_what_came_and_what_was_wanted(change, error, text):
    with pytest.raises(error, match=f"^onnx_resize: .*{text}"):
        F.onnx_resize(V(np.zeros((3, 4))), **({"sizes": (3, 8)} | change))


def test_roi_counts_only_where_it_is_cropped():
    x = nn.Variable.from_numpy_array(np.arange(12, dtype=np.float32).reshape(3, 4))
    with nn.auto_forward():
        want = F.onnx_resize(x, sizes=(5, 6)).d
        np.testing.assert_array_equal(F.onnx_resize(x, roi=(0.1, 0.9), sizes=(5, 6)).d, want)
