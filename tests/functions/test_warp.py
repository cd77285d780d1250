# SPDX-License-Identifier: Apache-2.0
"""affine_grid, warp_by_grid and warp_by_flow against PyTorch, and what they refuse."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F

V = nn.Variable.from_numpy_array
PADDING = {"zero": "zeros", "repeat": "border", "reflect": "reflection"}


@pytest.fixture
def rng():
    return np.random.default_rng(3)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("size", [(3, 4), (1, 5), (2, 3, 4)])
@pytest.mark.filterwarnings("ignore:Since version 1.3.0, affine_grid behavior")
def test_affine_grid(rng, size, align):
    torch = pytest.importorskip("torch")
    from tests.functions.against_torch import compare

    d = len(size)
    compare(
        lambda t: F.affine_grid(t, size=size, align_corners=align),
        lambda t: torch.nn.functional.affine_grid(t, (2, 1, *size), align_corners=align),
        rng.normal(size=(2, d, d + 1)),
    )


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("size,out", [((4, 5), (3, 2)), ((1, 5), (2, 2)), ((3, 4, 2), (2, 1, 3))])
def test_warp_by_grid(rng, size, out, mode, padding, align):
    torch = pytest.importorskip("torch")
    from tests.functions.against_torch import compare

    x = rng.normal(size=(2, 3, *size))
    grid = rng.uniform(-2.9, 2.9, (2, *out, len(size)))

    def reference(x, grid):
        return torch.nn.functional.grid_sample(
            x, grid, {"linear": "bilinear"}.get(mode, mode), PADDING[padding], align
        )

    def f(x, grid):
        return F.warp_by_grid(x, grid, mode=mode, padding_mode=padding, align_corners=align)

    # PyTorch cannot differentiate the gradient of grid_sample; the derived tests check that
    if mode == "linear":
        compare(f, reference, x, grid, order=1)
    else:
        compare(f, reference, x, fixed=(grid,), order=1)


@pytest.mark.parametrize("channels", [15, 16, 37])
@pytest.mark.parametrize("size,out", [((4, 5), (3, 2)), ((7, 9), (9, 30)), ((3, 4, 5), (2, 3, 5))])
def test_many_channels_are_warped_as_few(rng, channels, size, out):
    torch = pytest.importorskip("torch")
    from tests.functions.against_torch import compare

    compare(
        lambda x, grid: F.warp_by_grid(x, grid, align_corners=True),
        lambda x, grid: torch.nn.functional.grid_sample(x, grid, align_corners=True),
        rng.normal(size=(2, channels, *size)),
        rng.uniform(-1.5, 1.5, (2, *out, len(size))),
        order=1,
    )


def test_channel_last_is_the_same_with_axes_moved(rng):
    x, grid = rng.normal(size=(2, 3, 4, 5)), rng.uniform(-1, 1, (2, 3, 2, 2))
    with nn.auto_forward():
        y = F.warp_by_grid(V(x), V(grid))
        z = F.warp_by_grid(V(np.moveaxis(x, 1, -1)), V(grid), channel_last=True)
    np.testing.assert_array_equal(np.moveaxis(z.d, -1, 1), y.d)


def test_the_identity_map_gives_the_image_back(rng):
    x = rng.normal(size=(2, 3, 4, 5)).astype(np.float32)
    theta = np.broadcast_to(np.eye(2, 3), (2, 2, 3))
    with nn.auto_forward():
        for align in (False, True):
            grid = F.affine_grid(V(theta), size=(4, 5), align_corners=align)
            y = F.warp_by_grid(V(x), grid, padding_mode="repeat", align_corners=align)
            np.testing.assert_allclose(y.d, x, rtol=1e-5, atol=1e-5)


def test_nearest_rounds_halves_away_from_zero():
    x = np.arange(1.0, 6).reshape(1, 1, 1, 5)
    at = np.array([-0.5, 0.5, 1.5, 2.5, 3.5, 4.5])
    grid = np.stack((at / 2 - 1, 0 * at), -1).reshape(1, 1, 6, 2)
    with nn.auto_forward():
        y = F.warp_by_grid(V(x), V(grid), mode="nearest", align_corners=True)
    np.testing.assert_array_equal(y.d.ravel(), [0, 2, 3, 4, 5, 0])


def test_not_a_number_in_a_grid_gives_not_a_number_there_only():
    grid = np.zeros((1, 1, 2, 2))
    grid[0, 0, 1] = np.nan
    with nn.auto_forward():
        y = F.warp_by_grid(V(np.ones((1, 1, 3, 3))), V(grid))
    np.testing.assert_array_equal(y.d.ravel(), [1, np.nan])


def test_warp_by_flow(rng):
    torch = pytest.importorskip("torch")
    from tests.functions.against_torch import compare

    def reference(x, flow):
        h, w = x.shape[2:]
        columns = (torch.arange(w) + flow[:, 0]) * 2 / (w - 1) - 1
        rows = (torch.arange(h)[:, None] + flow[:, 1]) * 2 / (h - 1) - 1
        grid = torch.stack((columns, rows), -1)
        return torch.nn.functional.grid_sample(x, grid, "bilinear", "border", True)

    x, flow = rng.normal(size=(2, 3, 4, 5)), rng.uniform(-6, 6, (2, 2, 4, 5))
    compare(F.warp_by_flow, reference, x, flow, order=1)


@pytest.mark.parametrize(
    "name,shapes,at,text",
    [
        ("affine_grid", [(2, 2, 3)], {"size": (3,)}, r"size is \(3,\), wanted 2 or 3 sizes >= 1"),
        ("affine_grid", [(2, 2, 3)], {"size": (3, 0)}, r"size is \(3, 0\), wanted"),
        ("affine_grid", [(2, 2, 3)], {"size": (3, 3, 3)}, r"must have the shape \(B, 3, 4\)"),
        ("warp_by_grid", [(2, 3, 4), (2, 3, 1)], {}, "has rank 3, wanted 4 or 5"),
        ("warp_by_grid", [(2, 3, 4, 4), (1, 3, 4, 2)], {}, r"must have the shape \(2, H', W', 2\)"),
        ("warp_by_grid", [(2, 3, 4, 4), (2, 3, 4, 3)], {}, r"must have the shape \(2, H', W', 2\)"),
        ("warp_by_grid", [(2, 3, 0, 4), (2, 3, 4, 2)], {}, "has no pixels"),
        ("warp_by_grid", [(2, 3, 4, 4), (2, 3, 4, 2)], {"mode": "cubic"}, "mode is 'cubic'"),
        (
            "warp_by_grid",
            [(2, 3, 4, 4), (2, 3, 4, 2)],
            {"padding_mode": "wrap"},
            "padding_mode is 'wrap', wanted 'zero', 'repeat' or 'reflect'",
        ),
        ("warp_by_flow", [(2, 3, 4), (2, 2, 4)], {}, "data .* has rank 3, wanted 4"),
        ("warp_by_flow", [(2, 3, 4, 4), (2, 3, 4, 4)], {}, r"must have the shape \(2, 2, 4, 4\)"),
        ("warp_by_flow", [(2, 3, 0, 4), (2, 2, 0, 4)], {}, "has no pixels"),
    ],
)
def test_errors_name_what_came_and_what_was_wanted(name, shapes, at, text):
    with pytest.raises(ValueError, match=f"^{name}: .*{text}"):
        getattr(F, name)(*(V(np.zeros(s)) for s in shapes), **at)
