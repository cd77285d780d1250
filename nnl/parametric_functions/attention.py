# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention and the layers of a transformer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nnl import functions as F
from nnl.core.arguments.annotations import Input
from nnl.core.arrays.spec import ShapeError
from nnl.core.parameters.parameter import get_parameter_or_create
from nnl.parametric_functions.affine import affine
from nnl.parametric_functions.api import parametric_function_api
from nnl.parametric_functions.initializer import ZERO, glorot
from nnl.parametric_functions.normalization import layer_normalization

__all__ = ["multi_head_attention", "transformer", "transformer_encode", "transformer_decode"]

Rng = np.random.RandomState | None
MAX_LAYERS = 10_000  # more are a mistake that would fill the memory with parameters
Activation = Callable[[Any], Any] | None


@parametric_function_api(
    "multi_head_attention",
    [
        ("q_weight", "Projection of the query", "(D_q, E_k)", True),
        ("k_weight", "Projection of the key", "(D_k, E_k)", True),
        ("v_weight", "Projection of the value", "(D_v, E_v)", True),
        ("out_weight", "Projection of the result", "(E_v, D_out)", True),
        ("q_bias", "Bias", "(E_k,)", True),
        ("k_bias", "Bias", "(E_k,)", True),
        ("v_bias", "Bias", "(E_v,)", True),
        ("out_bias", "Bias", "(D_out,)", True),
        ("attn_bias_k", "Key of one more source position", "(1, 1, E_k)", True),
        ("attn_bias_v", "Value of one more source position", "(1, 1, E_v)", True),
    ],
)
def multi_head_attention(
    query: Input,
    key: Input,
    value: Input,
    num_heads: int = 12,
    dropout: float = 0.0,
    k_embed_dim: int | None = None,
    v_embed_dim: int | None = None,
    out_dim: int | None = None,
    rng: Rng = None,
    with_bias: bool = True,
    add_attn_bias: bool = False,
    additive_mask: Input | None = None,
    key_padding_mask: Input | None = None,
    fix_parameters: bool = False,
    param_init: dict[str, Any] | None = None,
) -> tuple[Any, Any]:
    r"""Attention in several heads, see `nnl.functions.multi_head_attention`.

    $$Q_h = q\, W^q_h + b^q_h, \quad K_h = k\, W^k_h + b^k_h, \quad V_h = v\, W^v_h + b^v_h$$
    $$A_h = \mathrm{softmax}(Q_h K_h^T / \sqrt{d} + \mathit{mask})$$
    $$y = (A_1 V_1, \ldots, A_H V_H)\, W_o + b_o$$ where q, k and v are query, key and value, and
    each of the H heads has d columns of the weights.

    Args:
        query: (T, B, D_q).
        key: (S, B, D_k).
        value: (S, B, D_v).
        num_heads: Number of heads; divides E_k and E_v.
        dropout: Probability with which an attention weight is set to 0.
        k_embed_dim: E_k; D_q if left out.
        v_embed_dim: E_v; D_v if left out.
        out_dim: D_out; E_v if left out.
        rng: Generator of the default initializers; the framework's if left out.
        with_bias: Whether the projections have biases.
        add_attn_bias: Whether there is one more source position, the same in every sample.
        additive_mask: (T, S), added to the scores.
        key_padding_mask: (B, S), other than 0 where a source position is not attended to.
        fix_parameters: Compute no gradients for the parameters in this call.
        param_init: Initializers or arrays by parameter name. Uniform with Glorot's limits for
            weights and attn_bias_*, and 0 for biases, if left out.
    Returns:
        y: (T, B, D_out), and the attention weights: (B num_heads, T, S).
    Raises:
        ShapeError: num_heads does not divide E_k and E_v. ValueError: param_init has another key.
    Source: Vaswani et al., Attention Is All You Need, arXiv:1706.03762, section 3.2.2.
    Example:
        >>> words = array(rng.normal(size=(3, 1, 8)))  # 3 positions, one sample
        >>> y, weights = PF.multi_head_attention(words, words, words, num_heads=2, name="ex")
        >>> y.shape, weights.shape
        ((3, 1, 8), (2, 3, 3))
    """
    name = "multi_head_attention"
    for argument, x in (("query", query), ("key", key), ("value", value)):
        if x.ndim != 3:
            raise ShapeError(f"{name}: {argument} has the shape {x.shape}, wanted 3 axes")
    width = query.shape[2] if k_embed_dim is None else k_embed_dim
    v_width = value.shape[2] if v_embed_dim is None else v_embed_dim
    out = v_width if out_dim is None else out_dim
    for argument, n in (("k_embed_dim", width), ("v_embed_dim", v_width)):
        if num_heads < 1 or n % num_heads:
            raise ShapeError(f"{name}: {argument} {n} is no multiple of num_heads {num_heads}")
    weights = {
        "q_weight": (query.shape[2], width),
        "k_weight": (key.shape[2], width),
        "v_weight": (value.shape[2], v_width),
        "out_weight": (v_width, out),
    }
    biases = {"q_bias": (width,), "k_bias": (width,), "v_bias": (v_width,), "out_bias": (out,)}
    extra = {"attn_bias_k": (1, 1, width), "attn_bias_v": (1, 1, v_width)}
    inits = param_init or {}
    unknown = sorted(set(inits) - {*weights, *biases, *extra})
    if unknown:
        raise ValueError(
            f"{name}: param_init has the key {unknown[0]!r}, wanted some of "
            f"{[*weights, *biases, *extra]}"
        )

    def parameter(key_: str, shape: tuple[int, ...]) -> Any:
        init = inits.get(key_)
        if init is None and len(shape) == 1:
            init = ZERO
        elif init is None:
            init = glorot(shape[-2], shape[-1], rng=rng)
        return get_parameter_or_create(key_, shape, init, True, not fix_parameters)

    given = {k: parameter(k, s) for k, s in weights.items()}
    if with_bias:
        given |= {k: parameter(k, s) for k, s in biases.items()}
    if add_attn_bias:
        given |= {k: parameter(k, s) for k, s in extra.items()}
    return F.multi_head_attention(
        query,
        key,
        value,
        num_heads,
        **given,
        dropout=dropout,
        additive_mask=additive_mask,
        key_padding_mask=key_padding_mask,
    )


class _Layer:
    """What the two kinds of transformer layers are made of."""

    def __init__(
        self,
        prefix: str,
        embed_dim: int,
        num_heads: int,
        dim_feedforward: int,
        dropout: float,
        activation: Activation,
        rng: Rng,
        add_attn_bias: bool,
        fix: bool,
    ) -> None:
        self.prefix, self.embed_dim, self.num_heads = prefix, embed_dim, num_heads
        self.dim_feedforward, self.dropout, self.fix = dim_feedforward, dropout, fix
        self.activation = F.relu if activation is None else activation
        self.rng, self.add_attn_bias = rng, add_attn_bias

    def dropped(self, x: Any) -> Any:
        return F.dropout(x, p=self.dropout) if self.dropout > 0 else x

    def normalised(self, x: Any, branch: Any, number: int) -> Any:
        """Layer normalisation of x + dropout(branch) over the last axis."""
        return layer_normalization(
            F.add2(x, self.dropped(branch)),
            batch_axis=(0, 1),
            fix_parameters=self.fix,
            name=f"{self.prefix}_layer_norm{number}",
        )

    def attention(self, name: str, x: Any, memory: Any, mask: Any, padding: Any) -> Any:
        y, _ = multi_head_attention(
            x,
            memory,
            memory,
            num_heads=self.num_heads,
            dropout=self.dropout,
            k_embed_dim=self.embed_dim,
            v_embed_dim=self.embed_dim,
            out_dim=self.embed_dim,
            rng=self.rng,
            add_attn_bias=self.add_attn_bias,
            additive_mask=mask,
            key_padding_mask=padding,
            fix_parameters=self.fix,
            name=name,
        )
        return y

    def feed_forward(self, x: Any) -> Any:
        y = self.affine(x, self.dim_feedforward, 1)
        return self.affine(self.dropped(self.activation(y)), self.embed_dim, 2)

    def affine(self, x: Any, n: int, number: int) -> Any:
        name = f"{self.prefix}_affine{number}"
        return affine(x, n, base_axis=2, fix_parameters=self.fix, rng=self.rng, name=name)


@parametric_function_api(
    "transformer_encode",
    [
        ("src_self_attn", "Scope of the self-attention", "see multi_head_attention", True),
        ("enc_affine1", "Scope of the first affine layer", "see affine", True),
        ("enc_affine2", "Scope of the second affine layer", "see affine", True),
        ("enc_layer_norm1", "Scope behind the attention", "see layer_normalization", True),
        ("enc_layer_norm2", "Scope behind the affine layers", "see layer_normalization", True),
    ],
)
def transformer_encode(
    src: Input,
    embed_dim: int,
    num_heads: int,
    dim_feedforward: int = 2048,
    dropout: float = 0.1,
    activation: Activation = None,
    src_additive_mask: Input | None = None,
    src_key_padding_mask: Input | None = None,
    rng: Rng = None,
    add_attn_bias: bool = False,
    fix_parameters: bool = False,
) -> Any:
    r"""One layer of a transformer's encoder: self-attention and two affine layers.

    $$z = \mathrm{norm}(x + \mathrm{attention}(x, x, x)), \quad
      y = \mathrm{norm}(z + f(z W_1 + b_1)\, W_2 + b_2)$$ with the layer normalisation norm of each
    position, and the activation f.

    Each of the two is added to its input, and the sum layer-normalised.

    Args:
        src: (S, B, embed_dim): S source positions, B samples.
        embed_dim: Width of the layer.
        num_heads: Number of heads; divides embed_dim.
        dim_feedforward: Width between the two affine layers.
        dropout: Probability of 0, on attention weights, between the affine layers and on what is
            added.
        activation: Between the affine layers; relu if left out.
        src_additive_mask: (S, S), added to the scores.
        src_key_padding_mask: (B, S), other than 0 where a position is not attended to.
        rng: Generator of the initializers; the framework's if left out.
        add_attn_bias: See `multi_head_attention`.
        fix_parameters: Compute no gradients for the parameters in this call.
    Returns:
        (S, B, embed_dim).
    Source: Vaswani et al., Attention Is All You Need, arXiv:1706.03762, section 3.1.
    Example:
        >>> src = array(rng.normal(size=(5, 1, 8)))
        >>> PF.transformer_encode(src, 8, 2, dim_feedforward=16, dropout=0, name="ex").shape
        (5, 1, 8)
    """
    layer = _Layer(
        "enc", embed_dim, num_heads, dim_feedforward, dropout, activation, rng, add_attn_bias,
        fix_parameters,
    )  # fmt: skip
    attended = layer.attention("src_self_attn", src, src, src_additive_mask, src_key_padding_mask)
    x = layer.normalised(src, attended, 1)
    return layer.normalised(x, layer.feed_forward(x), 2)


@parametric_function_api(
    "transformer_decode",
    [
        ("tgt_self_attn", "Scope of the self-attention", "see multi_head_attention", True),
        ("tgt_memory_attn", "Scope of the attention to memory", "see multi_head_attention", True),
        ("dec_affine1", "Scope of the first affine layer", "see affine", True),
        ("dec_affine2", "Scope of the second affine layer", "see affine", True),
        ("dec_layer_norm1", "Scope behind the self-attention", "see layer_normalization", True),
        ("dec_layer_norm2", "Scope behind the other attention", "see layer_normalization", True),
        ("dec_layer_norm3", "Scope behind the affine layers", "see layer_normalization", True),
    ],
)
def transformer_decode(
    tgt: Input,
    memory: Input,
    embed_dim: int,
    num_heads: int,
    dim_feedforward: int = 2048,
    dropout: float = 0.1,
    activation: Activation = None,
    tgt_additive_mask: Input | None = None,
    memory_additive_mask: Input | None = None,
    tgt_key_padding_mask: Input | None = None,
    memory_key_padding_mask: Input | None = None,
    rng: Rng = None,
    add_attn_bias: bool = False,
    fix_parameters: bool = False,
) -> Any:
    r"""One layer of a transformer's decoder: attention to itself, to memory, two affine layers.

    $$z = \mathrm{norm}(x + \mathrm{attention}(x, x, x)), \quad
      u = \mathrm{norm}(z + \mathrm{attention}(z, m, m))$$
    $$y = \mathrm{norm}(u + f(u W_1 + b_1)\, W_2 + b_2)$$ with the layer normalisation norm of each
    position, the activation f, tgt x and memory m.

    Args:
        tgt: (T, B, embed_dim): T target positions, B samples.
        memory: (S, B, embed_dim), result of the encoder.
        tgt_additive_mask: (T, T), added to the scores of the self-attention.
        memory_additive_mask: (T, S), added to the scores of the attention to memory.
        tgt_key_padding_mask, memory_key_padding_mask: (B, T) and (B, S), other than 0 where a
            position is not attended to.

    The other arguments are those of `transformer_encode`.

    Returns:
        (T, B, embed_dim).
    Source: Vaswani et al., Attention Is All You Need, arXiv:1706.03762, section 3.1.
    Example:
        >>> tgt, memory = array(rng.normal(size=(3, 1, 8))), array(rng.normal(size=(5, 1, 8)))
        >>> PF.transformer_decode(tgt, memory, 8, 2, dim_feedforward=16, dropout=0, name="ex").shape
        (3, 1, 8)
    """
    layer = _Layer(
        "dec", embed_dim, num_heads, dim_feedforward, dropout, activation, rng, add_attn_bias,
        fix_parameters,
    )  # fmt: skip
    attended = layer.attention("tgt_self_attn", tgt, tgt, tgt_additive_mask, tgt_key_padding_mask)
    x = layer.normalised(tgt, attended, 1)
    attended = layer.attention(
        "tgt_memory_attn", x, memory, memory_additive_mask, memory_key_padding_mask
    )
    x = layer.normalised(x, attended, 2)
    return layer.normalised(x, layer.feed_forward(x), 3)


@parametric_function_api(
    "transformer",
    [
        ("encoder{layer#}", "Scope of an encoder layer", "see transformer_encode", True),
        ("decoder{layer#}", "Scope of a decoder layer", "see transformer_decode", True),
    ],
)
def transformer(
    src: Input,
    tgt: Input,
    embed_dim: int = 512,
    num_heads: int = 8,
    num_encoder_layers: int = 6,
    num_decoder_layers: int = 6,
    dim_feedforward: int = 2048,
    dropout: float = 0.1,
    activation: Activation = None,
    src_additive_mask: Input | None = None,
    tgt_additive_mask: Input | None = None,
    memory_additive_mask: Input | None = None,
    src_key_padding_mask: Input | None = None,
    tgt_key_padding_mask: Input | None = None,
    memory_key_padding_mask: Input | None = None,
    rng: Rng = None,
    add_attn_bias: bool = False,
    fix_parameters: bool = False,
) -> Any:
    r"""A transformer: encoder layers on src, decoder layers on tgt that attend to their result.

    $$m = \mathrm{encode}_n(\cdots \mathrm{encode}_1(\mathit{src})), \quad
      y = \mathrm{decode}_k(\cdots \mathrm{decode}_1(\mathit{tgt}, m) \cdots, m)$$

    Args:
        src: (S, B, embed_dim).
        tgt: (T, B, embed_dim).
        num_encoder_layers, num_decoder_layers: Numbers of layers.

    The other arguments are those of `transformer_encode` and `transformer_decode`.

    Returns:
        (T, B, embed_dim).
    Source: Vaswani et al., Attention Is All You Need, arXiv:1706.03762.
    Example:
        >>> src, tgt = array(rng.normal(size=(5, 1, 8))), array(rng.normal(size=(3, 1, 8)))
        >>> PF.transformer(src, tgt, 8, 2, 1, 1, dim_feedforward=16, dropout=0, name="ex").shape
        (3, 1, 8)
    """
    for arg, n in (
        ("num_encoder_layers", num_encoder_layers),
        ("num_decoder_layers", num_decoder_layers),
    ):
        if not 0 <= n <= MAX_LAYERS:
            raise ValueError(f"transformer: {arg} is {n}, wanted 0 to {MAX_LAYERS}")
    shared: dict[str, Any] = dict(
        embed_dim=embed_dim,
        num_heads=num_heads,
        dim_feedforward=dim_feedforward,
        dropout=dropout,
        activation=activation,
        rng=rng,
        add_attn_bias=add_attn_bias,
        fix_parameters=fix_parameters,
    )
    memory = src
    for i in range(num_encoder_layers):
        memory = transformer_encode(
            memory,
            src_additive_mask=src_additive_mask,
            src_key_padding_mask=src_key_padding_mask,
            name=f"encoder{i:02d}",
            **shared,
        )
    y = tgt
    for i in range(num_decoder_layers):
        y = transformer_decode(
            y,
            memory,
            tgt_additive_mask=tgt_additive_mask,
            memory_additive_mask=memory_additive_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            name=f"decoder{i:02d}",
            **shared,
        )
    return y
