# SPDX-License-Identifier: Apache-2.0
"""Attention as users call it; multi_head_attention is composed of other functions."""

from __future__ import annotations

from typing import Any

from nnl.core.arguments.annotations import Input, checked
from nnl.core.arrays.spec import ShapeError
from nnl.core.ops.op import OPS

CATEGORY = "Layer"

__all__ = ["attention", "multi_head_attention"]

_NAME = "multi_head_attention"


@checked
def attention(
    query: Input,
    key: Input,
    value: Input,
    mask: Input | None = None,
    lengths: Input | None = None,
    offsets: Input | None = None,
    segments: Input | None = None,
    causal: bool = False,
    causal_offset: int = 0,
    window: int | None = None,
    soft_cap: float | None = None,
    scale: float | None = None,
) -> Any:
    r"""Scaled dot product attention with grouped queries, without memory for the scores.

    $$y_{bhi} = \sum_j P_{bhij} v_{bgj}, \quad
    P = \mathrm{softmax}_j(s\, q_{bhi} \cdot k_{bgj} + \mathit{mask})$$ over the keys j that the
    query sees, with $g = \lfloor h G / H \rfloor$. Query i of sample b stands at the position
    i + causal_offset + offsets[b], key j at j. The kernels of the native engine keep no scores, so
    memory grows with T + S, backward too; what has no kernel does keep them.

    Args:
        query: (B, H, T, D).
        key, value: (B, G, S, D) and (B, G, S, E), where G divides H.
        mask: Added to the scores (B, H, T, S), of which any axis may be 1 in it; or (T, S). It may
            be learned.
        lengths: (B,), integers: a sample has only that many keys.
        offsets: (B,), integers, see above.
        segments: (B, T), integers, where S is T: queries see only keys of the same number, as where
            several texts follow each other in one row.
        causal: A query sees the keys up to its own position only.
        causal_offset: See above; S - T lets the last query see all keys.
        window: A query sees only keys at a distance below it: the latest `window` keys if causal.
        soft_cap: Scores s become $c \tanh(s / c)$ before the mask is added.
        scale: s; $1 / \sqrt{D}$ if left out.
    Returns:
        (B, H, T, E). A query that sees no key gives 0.
    Raises:
        ShapeError: Sizes do not fit, or G does not divide H.
        ValueError: window or soft_cap is not above 0.
    Source: Dao et al., FlashAttention, arXiv:2205.14135; Ainslie et al., GQA, arXiv:2305.13245.
    Example:
        >>> q = array(rng.normal(size=(1, 4, 3, 8)))
        >>> k, v = array(rng.normal(size=(1, 2, 3, 8))), array(np.ones((1, 2, 3, 5)))
        >>> F.attention(q, k, v, causal=True).d[0, 0, 0]
        array([1., 1., 1., 1., 1.], dtype=float32)
    """
    for argument, limit in (("window", window), ("soft_cap", soft_cap)):
        if limit is not None and not limit > 0:
            raise ValueError(f"attention: {argument} is {limit}, wanted more than 0, or None")
    if len(query.shape) != 4:
        raise ShapeError(f"attention: query {query.spec} has not the four axes (B, H, T, D)")
    if mask is not None and len(mask.shape) not in (2, 4):
        raise ShapeError(
            f"attention: mask {mask.spec} has neither the axes (B, H, T, S) nor (T, S)"
        )
    return OPS["attention"](
        query, key, value, mask, lengths, offsets, segments, causal=causal,
        causal_offset=causal_offset, window=window or 0, soft_cap=soft_cap or 0.0,
        scale=(query.shape[3] or 1) ** -0.5 if scale is None else scale,
    )  # fmt: skip


@checked
def multi_head_attention(
    query: Input,
    key: Input,
    value: Input,
    num_heads: int,
    q_weight: Input,
    k_weight: Input,
    v_weight: Input,
    out_weight: Input,
    q_bias: Input | None = None,
    k_bias: Input | None = None,
    v_bias: Input | None = None,
    out_bias: Input | None = None,
    attn_bias_k: Input | None = None,
    attn_bias_v: Input | None = None,
    dropout: float = 0.0,
    additive_mask: Input | None = None,
    key_padding_mask: Input | None = None,
) -> tuple[Any, Any]:
    r"""Attend from every target position to every source position, in several heads.

    For queries q, keys k and values v of one sample, and head number h of H:
    $$Q_h = q\, W^q_h + b^q_h, \quad K_h = k\, W^k_h + b^k_h, \quad V_h = v\, W^v_h + b^v_h$$
    $$A_h = \mathrm{softmax}(Q_h K_h^T / \sqrt{d} + \mathit{mask})$$
    $$y = (A_1 V_1, \ldots, A_H V_H)\, W_o + b_o$$ where $W_h$ are the d columns of a weight that
    belong to the head, d = E_k / H, and the results of the heads stand side by side.

    Sizes: T target and S source positions, B samples, E_k and E_v widths of the projections.

    Args:
        query: (T, B, D_q).
        key: (S, B, D_k).
        value: (S, B, D_v).
        num_heads: Number of heads; divides E_k and E_v.
        q_weight, k_weight: (D_q, E_k) and (D_k, E_k).
        v_weight: (D_v, E_v).
        out_weight: (E_v, D_out).
        q_bias, k_bias, v_bias, out_bias: (E_k,), (E_k,), (E_v,), (D_out,), or left out.
        attn_bias_k, attn_bias_v: (1, 1, E_k) and (1, 1, E_v): one more source position, with this
            projection in every sample. Both or neither.
        dropout: Probability with which each element of A is set to 0, see `dropout`.
        additive_mask: (T, S), added to the scores of all heads and samples.
        key_padding_mask: (B, S): source positions with a value other than 0 are not attended to.
            A sample without any other position gives nan.
    Returns:
        y: (T, B, D_out), and A after dropout: (B num_heads, T, S); S is one larger with
        attn_bias_k.
    Raises:
        ShapeError: Ranks or sizes do not fit, or num_heads does not divide E_k and E_v.
        ValueError: Only one of attn_bias_k and attn_bias_v is given.
    Source: Vaswani et al., Attention Is All You Need, arXiv:1706.03762, section 3.2.
    Example:
        >>> w = array(np.eye(4))
        >>> words = array(rng.normal(size=(3, 1, 4)))  # 3 positions, one sample
        >>> y, weights = F.multi_head_attention(words, words, words, 2, w, w, w, w)
        >>> y.shape, weights.shape
        ((3, 1, 4), (2, 3, 3))
    """
    from nnl import functions as F

    for argument, x in (("query", query), ("key", key), ("value", value)):
        if x.ndim != 3:
            raise ShapeError(f"{_NAME}: {argument} has the shape {x.shape}, wanted 3 axes")
    targets, batch, _ = query.shape
    if key.shape[:2] != value.shape[:2] or key.shape[1] != batch:
        raise ShapeError(
            f"{_NAME}: query {query.shape}, key {key.shape} and value {value.shape} must have the "
            "same samples, and key and value the same positions"
        )
    weights = {"q_weight": q_weight, "k_weight": k_weight, "v_weight": v_weight}
    for argument, w in (*weights.items(), ("out_weight", out_weight)):
        if w.ndim != 2:
            raise ShapeError(f"{_NAME}: {argument} has the shape {w.shape}, wanted 2 axes")
    for argument, w in (("q_weight", q_weight), ("v_weight", v_weight)):
        if num_heads < 1 or not w.shape[1] or w.shape[1] % num_heads:
            raise ShapeError(
                f"{_NAME}: {argument} has {w.shape[1]} columns, wanted a multiple of num_heads "
                f"{num_heads}"
            )
    if (attn_bias_k is None) != (attn_bias_v is None):
        raise ValueError(
            f"{_NAME}: attn_bias_k and attn_bias_v must both be given or both left out"
        )
    sources = key.shape[0]
    _check_masks(additive_mask, key_padding_mask, targets, batch, sources)

    q = F.affine(query, q_weight, q_bias, base_axis=2)
    k = F.affine(key, k_weight, k_bias, base_axis=2)
    v = F.affine(value, v_weight, v_bias, base_axis=2)
    if attn_bias_k is not None:
        k = F.concatenate(k, F.broadcast(attn_bias_k, (1, batch, k.shape[2])), axis=0)
        v = F.concatenate(v, F.broadcast(attn_bias_v, (1, batch, v.shape[2])), axis=0)
    width = q.shape[2] // num_heads
    q = _heads(F, F.mul_scalar(q, width**-0.5), num_heads)
    scores = F.batch_matmul(q, _heads(F, k, num_heads), transpose_b=True)  # (B H, T, S)
    extra = k.shape[0] - sources
    if additive_mask is not None:
        mask = _padded(F, additive_mask, extra)
        scores = F.add2(scores, F.reshape(mask, (1, *mask.shape), inplace=False))
    if key_padding_mask is not None:
        shape = key_padding_mask.shape
        hide = F.where(key_padding_mask, F.constant(float("-inf"), shape), F.constant(0.0, shape))
        hide = _padded(F, hide, extra)
        by_head = F.reshape(scores, (batch, num_heads, *scores.shape[1:]), inplace=False)
        by_head = F.add2(by_head, F.reshape(hide, (batch, 1, 1, hide.shape[1]), inplace=False))
        scores = F.reshape(by_head, scores.shape, inplace=False)
    weights = F.softmax(scores, axis=2)
    if dropout > 0:
        weights = F.dropout(weights, p=dropout)
    y = F.batch_matmul(weights, _heads(F, v, num_heads))  # (B H, T, E_v / H)
    y = F.reshape(y, (batch, num_heads, *y.shape[1:]), inplace=False)
    y = F.reshape(F.transpose(y, (2, 0, 1, 3)), (targets, batch, v.shape[2]), inplace=False)
    return F.affine(y, out_weight, out_bias, base_axis=2), weights


def _check_masks(
    additive_mask: Any, key_padding_mask: Any, targets: int, batch: int, sources: int
) -> None:
    wanted = (
        ("additive_mask", additive_mask, (targets, sources)),
        ("key_padding_mask", key_padding_mask, (batch, sources)),
    )
    for argument, mask, shape in wanted:
        if mask is not None and mask.shape != shape:
            raise ShapeError(f"{_NAME}: {argument} has the shape {mask.shape}, wanted {shape}")


def _heads(F: Any, x: Any, num_heads: int) -> Any:
    """(S, B, H d) -> (B H, S, d)."""
    positions, batch, width = x.shape
    x = F.reshape(x, (positions, batch, num_heads, width // num_heads), inplace=False)
    x = F.transpose(x, (1, 2, 0, 3))
    return F.reshape(x, (batch * num_heads, positions, width // num_heads), inplace=False)


def _padded(F: Any, mask: Any, extra: int) -> Any:
    """The mask with a column of zeros for the added source position, if there is one."""
    return F.pad(mask, (0, 0, 0, extra)) if extra else mask
