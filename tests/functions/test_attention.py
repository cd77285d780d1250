# SPDX-License-Identifier: Apache-2.0
"""multi_head_attention: against PyTorch, masks, errors."""

import numpy as np
import pytest

import nnl as nn
from nnl import functions as F
from nnl.core.arrays.spec import ShapeError
from tests.functions.against_torch import compare

torch = pytest.importorskip("torch")

T, S, B, HEADS = 3, 4, 2, 2
SHAPES = [(T, B, 6), (S, B, 5), (S, B, 7), (6, 8), (5, 8), (7, 8), (8, 6)]
BIASES = [(8,), (8,), (8,), (6,)]
EXTRA = [(1, 1, 8), (1, 1, 8)]


def arrays(shapes):
    rng = np.random.default_rng(0)
    return [rng.normal(size=s) for s in shapes]


def masks():
    rng = np.random.default_rng(1)
    return rng.normal(size=(T, S)), np.array([[0, 0, 0, 1.0], [0, 1, 0, 0]])


def reference(extra, masked):
    """torch.nn.functional.multi_head_attention_forward on an embedding of 8."""

    def call(q, k, v, wq, wk, wv, wo, bq, bk, bv, bo, *more):
        biases = more[:2] if extra else (None, None)
        additive, padding = more[-2:] if masked else (None, None)
        hidden = None if padding is None else torch.where(padding != 0, -torch.inf, 0.0)
        # torch projects within one width: the query is projected before, and by the identity there
        y, a = torch.nn.functional.multi_head_attention_forward(
            q @ wq + bq, k, v, 8, HEADS, None, torch.cat([torch.zeros(8), bk, bv]),
            *biases, False, 0.0, wo.T, bo,
            key_padding_mask=hidden,
            attn_mask=additive, average_attn_weights=False, use_separate_proj_weight=True,
            q_proj_weight=torch.eye(8), k_proj_weight=wk.T, v_proj_weight=wv.T,
        )  # fmt: skip
        return y, a.reshape(B * HEADS, T, -1)

    return call


def ours(extra, masked):
    def call(*xs):
        xs = list(xs)
        kw = {}
        if masked:
            *xs, kw["additive_mask"], kw["key_padding_mask"] = xs
        return F.multi_head_attention(*xs[:3], HEADS, *xs[3:], **kw)

    return call


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("extra", [False, True])
def test_multi_head_attention_equals_torch(extra, masked):
    old = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        compare(
            ours(extra, masked),
            reference(extra, masked),
            *arrays(SHAPES + BIASES + (EXTRA if extra else [])),
            fixed=masks() if masked else (),
            rtol=1e-8,
        )
    finally:
        torch.set_default_dtype(old)


def variables(shapes=SHAPES):
    return [nn.Variable.from_numpy_array(a) for a in arrays(shapes)]


def test_padded_positions_get_no_attention():
    with nn.auto_forward():
        padding = nn.Variable.from_numpy_array(masks()[1])
        xs = variables()
        _, a = F.multi_head_attention(*xs[:3], HEADS, *xs[3:], key_padding_mask=padding)
        assert not a.d[:HEADS, :, 3].any() and not a.d[HEADS:, :, 1].any()
        np.testing.assert_allclose(a.d.sum(2), 1, rtol=1e-5)


def test_dropout_zeroes_attention_weights():
    nn.seed(1)
    with nn.auto_forward():
        xs = variables()
        _, a = F.multi_head_attention(*xs[:3], HEADS, *xs[3:], dropout=0.5)
        assert 0 < (a.d == 0).sum() < a.d.size


def test_empty_batch_gives_an_empty_result():
    with nn.auto_forward():
        xs = [nn.Variable((n, 0, d)) for n, d in ((T, 6), (S, 5), (S, 7))]
        y, a = F.multi_head_attention(*xs, HEADS, *variables(SHAPES[3:]))
        assert y.shape == (T, 0, 6) and a.shape == (0, T, S)


@pytest.mark.parametrize(
    "change,kw,text",
    [
        ({0: (T, 6)}, {}, r"query has the shape \(3, 6\), wanted 3 axes"),
        ({1: (S, 3, 5)}, {}, r"query \(3, 2, 6\), key \(4, 3, 5\) and value .* the same samples"),
        ({3: (6, 7)}, {}, r"q_weight has 7 columns, wanted a multiple of num_heads 2"),
        ({5: (7, 9)}, {}, r"v_weight has 9 columns, wanted a multiple of num_heads 2"),
        ({}, {"additive_mask": (S, T)}, r"additive_mask has the shape \(4, 3\), wanted \(3, 4\)"),
        (
            {},
            {"key_padding_mask": (S, B)},
            r"key_padding_mask has the shape \(4, 2\), wanted \(2, 4\)",
        ),
    ],
)
def test_shapes_are_checked(change, kw, text):
    xs = [nn.Variable(change.get(i, s)) for i, s in enumerate(SHAPES)]
    with pytest.raises(ShapeError, match=text):
        F.multi_head_attention(
            *xs[:3], HEADS, *xs[3:], **{k: nn.Variable(s) for k, s in kw.items()}
        )


def test_extra_key_and_value_come_together():
    xs = [nn.Variable(s) for s in SHAPES]
    with pytest.raises(ValueError, match=r"attn_bias_k and attn_bias_v must both be given or both"):
        F.multi_head_attention(*xs[:3], HEADS, *xs[3:], attn_bias_k=nn.Variable((1, 1, 8)))
