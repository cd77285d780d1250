# SPDX-License-Identifier: Apache-2.0
"""fft and ifft against PyTorch, and what they refuse."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F

V = nn.Variable.from_numpy_array


@pytest.mark.parametrize("name", ["fft", "ifft"])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_equals_pytorch(name, normalized, n):
    torch = pytest.importorskip("torch")
    from tests.functions.against_torch import compare

    transform = getattr(torch.fft, name + "n")

    def reference(x):
        y = transform(
            torch.view_as_complex(x), dim=tuple(range(-n, 0)), norm="ortho" if normalized else None
        )
        return torch.view_as_real(y)

    compare(
        lambda x: getattr(F, name)(x, signal_ndim=n, normalized=normalized),
        reference,
        np.random.default_rng(0).normal(size=(2, 5, 4, 3, 2)),
    )


@pytest.mark.parametrize("normalized", [False, True])
def test_ifft_undoes_fft(normalized):
    x = np.random.default_rng(0).normal(size=(2, 5, 6, 2)).astype(np.float32)
    with nn.auto_forward():
        y = F.ifft(F.fft(V(x), 2, normalized), 2, normalized)
    assert y.d.dtype == np.float32
    np.testing.assert_allclose(y.d, x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["fft", "ifft"])
@pytest.mark.parametrize(
    "shape,n,text",
    [
        ((4, 2), 0, "signal_ndim is 0, wanted >= 1"),
        ((4, 2), 2, r"x float32\[4, 2\] must have at least 3 axes for signal_ndim 2"),
        ((4, 3), 1, "the last of size 2"),
        ((4, 0, 2), 1, "has empty signals"),
    ],
)
def test_errors_name_what_came_and_what_was_wanted(name, shape, n, text):
    with pytest.raises(ValueError, match=f"^{name}: .*{text}"):
        getattr(F, name)(V(np.zeros(shape)), signal_ndim=n)
