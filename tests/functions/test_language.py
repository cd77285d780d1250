# SPDX-License-Identifier: Apache-2.0
"""Functions of language models against PyTorch and transformers, and their errors."""

import sys

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.arrays.spec import ShapeError
from tests.functions.against_torch import compare

torch = pytest.importorskip("torch")

DOUBLE = nn.Context(["cpu:double"])


def arrays(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=s) for s in shapes]


def v(x, dtype=None):
    return nn.Variable.from_numpy_array(np.asarray(x, dtype))


def float32(*shapes):
    return [v(a, np.float32) for a in arrays(*shapes)]


# ---- normalization ----


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_normalization_equals_pytorch(offset):
    compare(
        lambda x, g: F.rms_normalization(x, g, eps=1e-3, gamma_offset=offset),
        lambda x, g: torch.nn.functional.rms_norm(x, (5,), g + offset, 1e-3),
        *arrays((2, 3, 5), (5,)),
    )
    compare(
        lambda x: F.rms_normalization(x, axes=(-2, -1)),
        lambda x: torch.nn.functional.rms_norm(x, (3, 5), None, 1e-6),
        *arrays((2, 3, 5)),
    )


def test_rms_normalization_of_wrong_gamma():
    x, gamma = float32((2, 3), (2,))
    with pytest.raises(ShapeError, match=r"rms_normalization: gamma float32\[2\] .* than \(3,\)"):
        F.rms_normalization(x, gamma)


# ---- rotary embeddings ----


def rotated(x, position, frequency, interleaved, factor=1.0):
    """By complex numbers: x (B, H, T, D)."""
    angle = position[..., None] * frequency
    turn = torch.polar(torch.full_like(angle, factor), angle)
    turn = turn[None, None] if turn.ndim == 2 else turn[:, None]
    r = len(frequency)
    if interleaved:
        z = torch.view_as_complex(x[..., : 2 * r].unflatten(-1, (r, 2)).contiguous()) * turn
        parts = [torch.view_as_real(z).flatten(-2)]
    else:
        z = torch.complex(x[..., :r], x[..., r : 2 * r]) * turn
        parts = [z.real, z.imag]
    return torch.cat([*parts, x[..., 2 * r :]], -1)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_embedding_turns_pairs(interleaved):
    f = np.random.default_rng(0).uniform(0.1, 1, 3)
    for position in (np.array([5, 0, 2, 1]), np.array([[0, 1, 2, 3], [7, 8, 9, 9]])):
        compare(
            lambda x, p=position: F.rotary_embedding(x, v(p), v(f), interleaved, 1.25),
            lambda x, p=position: rotated(
                x, torch.tensor(p).double(), torch.tensor(f), interleaved, 1.25
            ),
            *arrays((2, 3, 4, 7)),
        )
    with nn.auto_forward():
        x = float32((2, 4, 3, 6))[0]
        y = F.rotary_embedding(x, v(position), v(f, np.float32), interleaved, axis=1)
        turned = F.transpose(x, (0, 2, 1, 3))
        other = F.rotary_embedding(turned, v(position), v(f, np.float32), interleaved)
        np.testing.assert_array_equal(y.d, other.d.swapaxes(1, 2))


ROPES = {
    "default": ({}, {}),
    "linear": ({"factor": 4.0}, {"factor": 4.0}),
    "dynamic": ({"factor": 2.0}, {"factor": 2.0, "original_length": 64, "length": 200}),
    "yarn": (
        {"factor": 8.0, "original_max_position_embeddings": 64},
        {"factor": 8.0, "original_length": 64},
    ),
    "llama3": (
        {
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
        {"factor": 8.0, "original_length": 64},
    ),
    "longrope": (
        {
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "short_factor": [1.0] * 16,
            "long_factor": [1 + i / 3 for i in range(16)],
        },
        {"factor": 4.0, "original_length": 16, "factors": [1 + i / 3 for i in range(16)]},
    ),
}


@pytest.mark.parametrize("scaling", ROPES)
def test_rotary_frequencies_are_those_of_transformers(scaling):
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    theirs, ours = ROPES[scaling]
    base = 500.0
    config = transformers.LlamaConfig(
        hidden_size=64,
        num_attention_heads=2,
        max_position_embeddings=64,
        rope_parameters={"rope_type": scaling, "rope_theta": base, **theirs},
    )
    if scaling == "default":
        want, factor = 1 / base ** (torch.arange(0, 32, 2) / 32), 1.0
    else:
        want, factor = ROPE_INIT_FUNCTIONS[scaling](config, "cpu", seq_len=200)
    got = F.rotary_frequencies(32, base, scaling, **ours)
    np.testing.assert_allclose(got.frequencies, want.numpy(), rtol=3e-6)
    assert got.factor == pytest.approx(factor)


def test_errors_of_rotary_embedding():
    (x,) = float32((2, 3, 4))
    f = v([1, 2], np.float32)
    with pytest.raises(ShapeError, match=r"positions int64\[2\], wanted the shape \(3,\) or \(2, "):
        F.rotary_embedding(x, v([0, 1]), f)
    with pytest.raises(ShapeError, match=r"frequencies float32\[3\], wanted at most 2, half"):
        F.rotary_embedding(x, v([0, 1, 2]), v([1, 2, 3], np.float32))
    for kw, text in (
        ({"width": 5}, "width is 5, wanted an even number"),
        ({"width": 4, "scaling": "ntk"}, "scaling is 'ntk', wanted one of default, linear"),
        ({"width": 4, "scaling": "yarn"}, "yarn needs original_length"),
        ({"width": 4, "scaling": "longrope"}, "longrope needs factors"),
        ({"width": 4, "scaling": "longrope", "factors": [1.0]}, "factors, wanted 2 numbers"),
        ({"width": 4, "base": 1.0}, "base is 1.0, wanted more than 1"),
        ({"width": 4, "factor": 0.0}, "factor is 0.0, wanted more than 0"),
    ):
        with pytest.raises(ValueError, match=f"rotary_frequencies: {text}"):
            F.rotary_frequencies(**kw)


# ---- gates ----


def test_gated_activations_equal_pytorch():
    silu, gelu = torch.nn.functional.silu, torch.nn.functional.gelu
    both = arrays((2, 3), (2, 3))
    compare(F.swiglu, lambda x, u: silu(x) * u, *both)
    compare(F.geglu, lambda x, u: gelu(x, approximate="tanh") * u, *both, rtol=1e-6)
    exact = dict(approximate=False)
    compare(lambda x, u: F.geglu(x, u, **exact), lambda x, u: gelu(x) * u, *both, rtol=1e-6)
    compare(
        lambda x: F.swiglu(x, axis=0),
        lambda x: silu(x[:2]) * x[2:],
        *arrays((4, 3)),
    )
    x, u = float32((2, 3), (3, 3))
    with pytest.raises(ShapeError, match=r"swiglu: x float32\[2, 3\] has an odd size along axis 1"):
        F.swiglu(x)
    with pytest.raises(ShapeError, match="geglu: x .* and up .* must have the same shape"):
        F.geglu(x, u)


# ---- drawing ----


def test_multinomial_draws_with_the_frequencies_of_the_weights():
    weights = np.array([[1, 0, 3, 4], [0, 5, 0, 0]], np.float32)
    with nn.auto_forward():
        y = F.multinomial(v(weights), 20000, seed=3).d
        assert (y[1] == 1).all()
        share = np.bincount(y[0], minlength=4) / 20000
        np.testing.assert_allclose(share, weights[0] / 8, atol=0.015)
        again = F.multinomial(v(weights), 20000, seed=3).d
        np.testing.assert_array_equal(y, again)
        each = F.multinomial(v(weights[:1]), 3, replace=False, seed=1).d
        assert sorted(each[0]) == [0, 2, 3]
        for x, kw, text in (
            ([[1, -1]], {}, "weights has the weight -1, wanted weights >= 0"),
            ([[0, 0]], {}, "weights has no positive weight in a slice"),
            ([[0, 1]], dict(count=2, replace=False), "weights has 1 positive weights .*, wanted 2"),
            ([[0, 1]], dict(count=3, replace=False), "count 3 without replacement is more than"),
            ([[0, 1]], dict(count=0), "count is 0, wanted at least 1"),
        ):
            with pytest.raises(ValueError, match=f"multinomial: {text}"):
                F.multinomial(v(x, np.float32), **kw)


# ---- a loss of many classes ----


@pytest.mark.parametrize("cap", [0.0, 2.0])
def test_linear_cross_entropy_equals_pytorch(cap):
    label = np.array([[0, 6, 3], [-100, 2, 2]])

    def reference(x, w):
        s = x @ w.T
        s = cap * torch.tanh(s / cap) if cap else s
        return torch.nn.functional.cross_entropy(
            s.flatten(0, 1), torch.tensor(label).flatten(), reduction="none"
        ).reshape(2, 3)

    compare(
        lambda x, w: F.linear_cross_entropy(x, w, v(label), soft_cap=cap),
        reference,
        *arrays((2, 3, 4), (7, 4)),
    )


def test_linear_cross_entropy_in_chunks(monkeypatch):
    module = sys.modules["nnl.functions.linear_cross_entropy"]
    x, w = float32((5, 4), (7, 4))
    w.need_grad = x.need_grad = True
    found = []
    for chunk in (1 << 22, 14):
        monkeypatch.setattr(module, "CHUNK", chunk)
        with nn.context_scope(nn.Context(["numpy:float"])), nn.auto_forward():
            y = F.linear_cross_entropy(x, w, v([0, 1, 2, 6, -100]))
            found.append([y.d, *(g.d for g in nn.grad([y], [x, w]))])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_errors_of_linear_cross_entropy():
    x, w = float32((2, 4), (3, 4))
    with nn.auto_forward():
        with pytest.raises(ValueError, match="linear_cross_entropy: label holds 3, wanted 0 to 2"):
            F.linear_cross_entropy(x, w, v([0, 3]))
        with pytest.raises(ShapeError, match=r"label int64\[3\], wanted the shape \(2,\)"):
            F.linear_cross_entropy(x, w, v([0, 1, 2]))
        with pytest.raises(ShapeError, match="x .* has another number of features than a row of w"):
            F.linear_cross_entropy(x, float32((3, 5))[0], v([0, 1]))


# ---- experts ----


def mixture(x, scores, gate, down, up, k, normalized):
    """Every expert for every row, then the chosen ones."""
    p = scores.softmax(-1)
    top, index = p.topk(k, -1)
    if normalized:
        top = top / top.sum(-1, keepdim=True)
    h = torch.nn.functional.silu(torch.einsum("nd,edf->nef", x, gate))
    if up is not None:
        h = h * torch.einsum("nd,edf->nef", x, up)
    y = torch.einsum("nef,efd->ned", h, down)
    y = torch.gather(y, 1, index[..., None].expand(*index.shape, y.shape[-1]))
    return (y * top[..., None]).sum(1)


@pytest.mark.parametrize("normalized", [True, False])
def test_mixture_of_experts_equals_all_experts(normalized):
    shapes = (6, 3), (6, 4), (4, 3, 5), (4, 5, 3), (4, 3, 5)
    compare(
        lambda x, s, g, d, u: F.mixture_of_experts(x, s, g, d, u, 2, normalized),
        lambda x, s, g, d, u: mixture(x, s, g, d, u, 2, normalized),
        *arrays(*shapes),
    )
    compare(
        lambda x, s, g, d: F.mixture_of_experts(
            x, s, g, d, top_k=3, normalized=normalized, transposed=True
        ),
        lambda x, s, g, d: mixture(x, s, g.mT, d.mT, None, 3, normalized),
        *arrays((6, 3), (6, 4), (4, 5, 3), (4, 3, 5)),
    )


def test_errors_of_experts():
    x, scores, gate, down = float32((2, 3), (2, 4), (4, 3, 5), (4, 5, 3))
    with nn.auto_forward():
        with pytest.raises(ValueError, match="expert_product: index holds 4, wanted 0 to 3"):
            F.expert_product(x, gate, v([[0], [4]]))
        with pytest.raises(
            ShapeError, match=r"weight .* takes 5 features, x float32\[2, 3\] has 3"
        ):
            F.expert_product(x, down, v([[0], [3]]))
        with pytest.raises(ValueError, match="mixture_of_experts: top_k is 5, wanted 1 to 4"):
            F.mixture_of_experts(x, scores, gate, down, top_k=5)
        with pytest.raises(ShapeError, match="mixture_of_experts: gate .*, wanted 5 experts"):
            F.mixture_of_experts(x, float32((2, 5))[0], gate, down)
        with pytest.raises(ValueError, match="activation is 'tanh', wanted swish, gelu or relu"):
            F.mixture_of_experts(x, scores, gate, down, activation="tanh")
