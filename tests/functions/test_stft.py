# SPDX-License-Identifier: Apache-2.0
"""stft and istft against PyTorch, and what they refuse."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F

V = nn.Variable.from_numpy_array
WINDOWS = {"hanning": "hann_window", "hamming": "hamming_window", "rectangular": "ones"}


def torch_window(torch, kind, size):
    return getattr(torch, WINDOWS[kind])(size, dtype=torch.float64)


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("center,pad_mode", [(True, "reflect"), (True, "constant"), (False, "")])
@pytest.mark.parametrize("size,stride,fft_size", [(8, 4, 8), (5, 2, 8), (6, 3, 7)])
def test_stft_equals_pytorch(kind, center, pad_mode, size, stride, fft_size):
    torch = pytest.importorskip("torch")
    from tests.functions.against_torch import compare

    pad_mode = pad_mode or "reflect"

    def reference(x):
        y = torch.stft(
            x,
            fft_size,
            stride,
            size,
            torch_window(torch, kind, size),
            center=center,
            pad_mode=pad_mode,
            return_complex=True,
        )
        return y.real, y.imag

    compare(
        lambda x: F.stft(x, size, stride, fft_size, kind, center, pad_mode),
        reference,
        np.random.default_rng(0).normal(size=(2, 21)),
    )


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("size,stride,fft_size", [(8, 2, 8), (7, 3, 8), (7, 2, 9)])
def test_istft_equals_pytorch(kind, size, stride, fft_size):
    torch = pytest.importorskip("torch")
    from tests.functions.against_torch import compare

    def reference(y_r, y_i):
        # an inverse does not read the imaginary parts of the two ends, PyTorch's gradient does
        y = torch.complex(y_r, y_i)
        return torch.istft(y, fft_size, stride, size, torch_window(torch, kind, size))

    compare(
        lambda y_r, y_i: F.istft(y_r, y_i, size, stride, fft_size, kind),
        reference,
        *np.random.default_rng(0).normal(size=(2, 2, fft_size // 2 + 1, 5)),
    )


@pytest.mark.parametrize("stride", [2, 3, 4])
def test_istft_undoes_stft(stride):
    x = np.random.default_rng(0).normal(size=(2, 4 * stride * 3)).astype(np.float32)
    with nn.auto_forward():
        y_r, y_i = F.stft(V(x), 8, stride, 8)
        again = F.istft(y_r, y_i, 8, stride, 8)
    assert again.d.dtype == np.float32
    np.testing.assert_allclose(again.d, x[:, : again.shape[1]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("pad_mode", ["reflect", "constant"])
def test_istft_as_stft_backward_is_the_transpose_of_stft(center, pad_mode):
    rng = np.random.default_rng(0)
    at = {"window_size": 6, "stride": 4, "fft_size": 8, "center": center, "pad_mode": pad_mode}
    with nn.context_scope(nn.Context(["cpu:double"])), nn.auto_forward():
        x = V(rng.normal(size=(2, 16)), need_grad=True)
        y_r, y_i = F.stft(x, **at)
        u, v = rng.normal(size=(2, *y_r.shape))
        (g,) = nn.grad([y_r, y_i], [x], [V(u), V(v)])
        again = F.istft(V(u), V(v), as_stft_backward=True, **at)
    np.testing.assert_allclose(again.d, g.d, rtol=1e-12, atol=1e-12)


def test_stft_as_istft_backward_is_the_transpose_of_istft():
    rng = np.random.default_rng(0)
    at = {"window_size": 6, "stride": 2, "fft_size": 8, "pad_mode": "constant"}
    with nn.context_scope(nn.Context(["cpu:double"])), nn.auto_forward():
        y_r, y_i = (V(rng.normal(size=(2, 5, 6)), need_grad=True) for _ in range(2))
        x = F.istft(y_r, y_i, **at)
        u = rng.normal(size=x.shape)
        want = nn.grad([x], [y_r, y_i], [V(u)])
        got = F.stft(V(u), as_istft_backward=True, **at)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g.d, w.d, rtol=1e-12, atol=1e-12)


GOOD = {"window_size": 8, "stride": 4, "fft_size": 8}


@pytest.mark.parametrize(
    "shape,change,text",
    [
        ((2, 3, 32), {}, r"x float32\[2, 3, 32\] has rank 3, wanted \(batch, samples\)"),
        ((2, 0), {}, "has 0 samples, 8 with padding, wanted at least 1 for one frame"),
        ((2, 7), {"center": False}, "has 7 samples, 7 with padding, wanted at least 8"),
        ((2, 32), {"window_type": "hann"}, "window_type is 'hann', wanted 'hanning', 'hamming'"),
        ((2, 32), {"pad_mode": "edge"}, "pad_mode is 'edge', wanted 'constant' or 'reflect'"),
        ((2, 32), {"stride": 0}, "stride is 0, wanted >= 1"),
        ((2, 32), {"window_size": 9}, "window_size is 9, wanted between 1 and fft_size 8"),
        ((2, 32), {"window_size": 0}, "window_size is 0, wanted between 1 and fft_size 8"),
        ((2, 32), {"as_istft_backward": True}, "pad_mode is 'reflect', wanted 'constant' with"),
        (
            (2, 32),
            {"as_istft_backward": True, "pad_mode": "constant", "center": False},
            "sample 0 of 32 lies under no hanning window",
        ),
    ],
)
def test_stft_names_what_came_and_what_was_wanted(shape, change, text):
    with pytest.raises(ValueError, match=f"^stft: .*{text}"):
        F.stft(V(np.zeros(shape)), **(GOOD | change))


@pytest.mark.parametrize(
    "shape,change,text",
    [
        ((2, 5), {}, r"y_r float32\[2, 5\] must have the shape \(batch, 5, frames\)"),
        ((2, 4, 6), {}, r"must have the shape \(batch, 5, frames\) for fft_size 8"),
        ((2, 5, 0), {}, "has 0 frames, of which no sample is left"),
        ((2, 5, 1), {}, "has 1 frames, of which no sample is left with stride 4, fft_size 8"),
        ((2, 5, 6), {"window_type": "hann"}, "window_type is 'hann'"),
        ((2, 5, 6), {"center": False}, "sample 0 of 28 lies under no hanning window of size 8"),
        ((2, 5, 6), {"window_size": 3}, "lies under no hanning window of size 3 with stride 4"),
    ],
)
def test_istft_names_what_came_and_what_was_wanted(shape, change, text):
    y = V(np.zeros(shape))
    with pytest.raises(ValueError, match=f"^istft: .*{text}"):
        F.istft(y, y, **(GOOD | change))


def test_istft_wants_two_parts_of_one_shape():
    y_r, y_i = V(np.zeros((2, 5, 6))), V(np.zeros((2, 5, 5)))
    with pytest.raises(ValueError, match="^istft: .*y_r.*y_i"):
        F.istft(y_r, y_i, **GOOD)
