# SPDX-License-Identifier: Apache-2.0
"""patch_correlation against PyTorch, and what it refuses."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F

V = nn.Variable.from_numpy_array
SETTINGS = [
    {},
    {"shift": (1, 2)},
    {"patch": (2, 3), "shift": (1, 1), "padding": (1, 0, 2, 1)},
    {"patch": (2, 2), "shift": (2, 3), "patch_step": (2, 3), "shift_step": (3, 2)},
]


@pytest.mark.parametrize("channel_last", [False, True])
@pytest.mark.parametrize("at", SETTINGS)
def test_equals_products_with_shifted_images(at, channel_last):
    torch = pytest.importorskip("torch")
    from tests.functions.against_torch import compare

    T = torch.nn.functional
    rng = np.random.default_rng(0)
    kh, kw = at.get("patch", (1, 1))
    d, t = at.get("shift", (0, 0)), at.get("shift_step", (1, 1))
    top, bottom, left, right = at.get("padding", (0, 0, 0, 0))

    def reference(x1, x2):
        if channel_last:
            x1, x2 = x1.movedim(-1, 1), x2.movedim(-1, 1)
        x1, x2 = (T.pad(x, (left, right, top, bottom)) for x in (x1, x2))
        x2 = T.pad(x2, (d[1], d[1], d[0], d[0]))
        h, w = x1.shape[2:]
        rows = []
        for i in range(0, 2 * d[0] + 1, t[0]):
            maps = [
                T.avg_pool2d(
                    (x1 * x2[:, :, i : i + h, j : j + w]).sum(1),
                    (kh, kw), at.get("patch_step", (1, 1)), divisor_override=1,
                )
                for j in range(0, 2 * d[1] + 1, t[1])
            ]  # fmt: skip
            rows.append(torch.stack(maps, 1))
        y = torch.stack(rows, 1)
        return y.permute(0, 3, 4, 1, 2) if channel_last else y

    shape = (2, 5, 6, 3) if channel_last else (2, 3, 5, 6)
    x1, x2 = rng.normal(size=shape), rng.normal(size=shape)
    compare(lambda *x: F.patch_correlation(*x, **at, channel_last=channel_last), reference, x1, x2)


@pytest.mark.parametrize("channel_last", [False, True])
@pytest.mark.parametrize(
    "shapes,at,text",
    [
        ([(3, 4, 4), (3, 4, 4)], {}, "x1 .* has rank 3, wanted 4"),
        ([(1, 3, 4, 4), (1, 3, 4, 5)], {}, "x1 .* and x2 .* must have the same shape"),
        ([(1, 4, 4, 4)] * 2, {"patch": (5, 1)}, r"patch \(5, 1\) is larger than x1"),
        ([(1, 4, 4, 4)] * 2, {"patch": (0, 1)}, r"patch is \(0, 1\), wanted 2 numbers >= 1"),
        ([(1, 4, 4, 4)] * 2, {"shift": (1,)}, r"shift is \(1,\), wanted 2 numbers >= 0"),
        (
            [(1, 4, 4, 4)] * 2,
            {"padding": (1, 1, 1)},
            r"padding is \(1, 1, 1\), wanted 4 numbers >= 0",
        ),
    ],
)
def test_errors_name_what_came_and_what_was_wanted(shapes, at, text, channel_last):
    with pytest.raises(ValueError, match=f"^patch_correlation: .*{text}"):
        F.patch_correlation(*(V(np.zeros(s)) for s in shapes), **at, channel_last=channel_last)


def test_one_number_stands_for_both_axes():
    x1, x2 = (nn.Variable.from_numpy_array(a) for a in np.random.default_rng(0).normal(
        size=(2, 1, 2, 6, 7)).astype(np.float32))  # fmt: skip
    names = "patch", "shift", "patch_step", "shift_step"
    with nn.auto_forward():
        for numbers in ((3, 1, 2, 1), (2, 2, 1, 2)):
            both = {k: (n, n) for k, n in zip(names, numbers, strict=True)}
            want = F.patch_correlation(x1, x2, **both, padding=(1, 1, 1, 1)).d
            got = F.patch_correlation(x1, x2, *numbers, padding=1).d
            np.testing.assert_array_equal(got, want)
        want = F.patch_correlation(x1, x2, padding=(1, 1, 2, 2)).d
        np.testing.assert_array_equal(F.patch_correlation(x1, x2, padding=(1, 2)).d, want)
