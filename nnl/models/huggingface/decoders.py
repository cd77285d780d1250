# SPDX-License-Identifier: Apache-2.0
"""Families of language models that write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import log
from typing import Any

from nnl.core.graph.variable import Variable
from nnl.models.decoder import Decoder, decoder
from nnl.models.huggingface.family import Config, Family, only
from nnl.models.stack import Experts, Layer, Rotary, Stack

CURVES = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "tanh": "tanh",
}

GPT2 = {
    "tokens": "transformer.wte",
    "positions": "transformer.wpe",
    "layer{i}/attention/norm": "transformer.h.{i}.ln_1",
    "layer{i}/attention/qkv": "transformer.h.{i}.attn.c_attn",
    "layer{i}/attention/out": "transformer.h.{i}.attn.c_proj",
    "layer{i}/feed_forward/norm": "transformer.h.{i}.ln_2",
    "layer{i}/up": "transformer.h.{i}.mlp.c_fc",
    "layer{i}/down": "transformer.h.{i}.mlp.c_proj",
    "out": "transformer.ln_f",
    "head": "lm_head",
}
LLAMA = {
    "tokens": "model.embed_tokens",
    "layer{i}/attention/norm": "model.layers.{i}.input_layernorm",
    "layer{i}/attention/q": "model.layers.{i}.self_attn.q_proj",
    "layer{i}/attention/k": "model.layers.{i}.self_attn.k_proj",
    "layer{i}/attention/v": "model.layers.{i}.self_attn.v_proj",
    "layer{i}/attention/q_norm": "model.layers.{i}.self_attn.q_norm",
    "layer{i}/attention/k_norm": "model.layers.{i}.self_attn.k_norm",
    "layer{i}/attention/out": "model.layers.{i}.self_attn.o_proj",
    "layer{i}/feed_forward/norm": "model.layers.{i}.post_attention_layernorm",
    "layer{i}/gate": "model.layers.{i}.mlp.gate_proj",
    "layer{i}/up": "model.layers.{i}.mlp.up_proj",
    "layer{i}/down": "model.layers.{i}.mlp.down_proj",
    "out": "model.norm",
    "head": "lm_head",
}
BEHIND = {  # norms after the parts
    "layer{i}/attention/norm_after": "model.layers.{i}.post_attention_layernorm",
    "layer{i}/feed_forward/norm": "model.layers.{i}.pre_feedforward_layernorm",
    "layer{i}/feed_forward/norm_after": "model.layers.{i}.post_feedforward_layernorm",
}
JOINED = {
    "layer{i}/attention/qkv": "model.layers.{i}.self_attn.qkv_proj",
    "layer{i}/gate_up": "model.layers.{i}.mlp.gate_up_proj",
}
MIXTRAL = {
    "layer{i}/router": "model.layers.{i}.block_sparse_moe.gate",
    "layer{i}/experts/gate": "model.layers.{i}.block_sparse_moe.experts.{e}.w1.weight",
    "layer{i}/experts/up": "model.layers.{i}.block_sparse_moe.experts.{e}.w3.weight",
    "layer{i}/experts/down": "model.layers.{i}.block_sparse_moe.experts.{e}.w2.weight",
}
EXPERTS = {
    "layer{i}/router": "model.layers.{i}.mlp.gate",
    "layer{i}/experts/gate": "model.layers.{i}.mlp.experts.{e}.gate_proj.weight",
    "layer{i}/experts/up": "model.layers.{i}.mlp.experts.{e}.up_proj.weight",
    "layer{i}/experts/down": "model.layers.{i}.mlp.experts.{e}.down_proj.weight",
    "layer{i}/shared/gate": "model.layers.{i}.mlp.shared_expert.gate_proj",
    "layer{i}/shared/up": "model.layers.{i}.mlp.shared_expert.up_proj",
    "layer{i}/shared/down": "model.layers.{i}.mlp.shared_expert.down_proj",
    "layer{i}/shared_gate": "model.layers.{i}.mlp.shared_expert_gate",
}


def rotary(c: Config, width: int, kind: str = "", base: float = 10000.0) -> Rotary:
    """What `rope_parameters` says, or `rope_theta` and `rope_scaling` in older files.

    Args:
        kind: The kind of layer, where there is an object for each.
    """
    given = c.get("rope_parameters", {})
    if kind in given:
        given = Config(given, f"{c.where}: rope_parameters").part(kind).data
    elif not given:
        given = {"rope_theta": c.get("rope_theta", base), **c.get("rope_scaling", {})}
        given["rope_type"] = given.get("rope_type", given.get("type", "default"))
    r = Config(given, f"{c.where}: rope_parameters")
    longest = c.whole("max_position_embeddings", 2048)
    share = r.number("partial_rotary_factor", c.number("partial_rotary_factor", 1.0))
    turned, base = int(width * share), r.number("rope_theta", c.number("rope_theta", base))
    if share != 1 and c.data.get("model_type") != "phi3":  # others turn all, or leave it open
        raise ValueError(f"{r.where}: partial_rotary_factor is {share}, only 1 is supported")
    names = {n: n for n in ("default", "linear", "dynamic", "yarn", "llama3", "longrope")}
    scaling = r.one_of("rope_type", names | {"su": "longrope"}, "default")
    if scaling == "default":
        return Rotary(turned, base)
    before = c.whole("original_max_position_embeddings", 0, 0)
    own = r.whole("original_max_position_embeddings", before, 0)
    original = own or longest
    if scaling == "dynamic":
        original = longest
    ratio = longest / original if scaling in ("yarn", "longrope") else None
    options = {"factor": r.number("factor", ratio), "original_length": original}
    if scaling == "linear":
        del options["original_length"]
    if scaling in ("yarn", "llama3"):
        names = (
            ("beta_slow", "beta_fast")
            if scaling == "yarn"
            else ("low_freq_factor", "high_freq_factor")
        )
        options |= {
            k: r.number(n) for k, n in zip(("low", "high"), names, strict=True) if r.get(n, 0)
        }
    if scaling == "yarn":
        options["truncate"] = r.flag("truncate", True)
        scales = [r.number("mscale", 0), r.number("mscale_all_dim", 0)]
        if all(scales) and options["factor"] > 1:
            first, second = (0.1 * s * log(options["factor"]) + 1 for s in scales)
            options["attention_factor"] = first / second
    long_factors: Sequence[float] = ()
    if scaling == "longrope":
        options["factors"] = _numbers(r, "short_factor")
        long_factors = _numbers(r, "long_factor")
    if r.data.get("attention_factor") is not None:
        options["attention_factor"] = r.number("attention_factor")
    return Rotary(turned, base, scaling, tuple(options.items()), tuple(long_factors))


def _numbers(c: Config, key: str) -> tuple[float, ...]:
    value = c.data.get(key)
    if not isinstance(value, list) or not all(type(v) in (int, float) for v in value):
        raise ValueError(f"{c.where}: {key} is {value!r:.60}, wanted a list of numbers")
    return tuple(map(float, value))


def gpt2(c: Config) -> Decoder:
    width, heads = c.whole("n_embd"), c.whole("n_head")
    layers = Stack(
        width=width,
        heads=heads,
        kv_heads=heads,
        head_width=width // heads,
        between=c.whole("n_inner", 4 * width),
        layers=(Layer(),) * c.whole("n_layer"),
        eps=c.number("layer_norm_epsilon", 1e-5),
        activation=c.one_of("activation_function", CURVES, "gelu_new"),
        joined=True,
        causal=True,
    )
    only(
        c, scale_attn_by_inverse_layer_idx=False, scale_attn_weights=True, add_cross_attention=False
    )
    tied = c.flag("tie_word_embeddings", True)
    return Decoder(c.whole("vocab_size"), c.whole("n_positions"), layers, learned=True, tied=tied)


def llama(
    c: Config,
    tied: bool = False,
    factor: float = 1.0,
    act: str = "hidden_act",
    kinds: Any = None,
    **more: Any,
) -> Decoder:
    """What most families have in common; `more` is of the Stack.

    Args:
        kinds: The kind of each layer, where the file does not say it: a function of its number.
    """
    width, heads = c.whole("hidden_size"), c.whole("num_attention_heads")
    head_width = c.whole("head_dim", width // heads)
    count = c.whole("num_hidden_layers")
    window = c.whole("sliding_window", 0, 0)
    names = c.get("layer_types", []) or [
        (kinds(i) if kinds else window > 0) and "sliding_attention" or "full_attention"
        for i in range(count)
    ]
    if len(names) != count or any(n not in ("sliding_attention", "full_attention") for n in names):
        raise ValueError(
            f"{c.where}: layer_types is {names!r:.60}, wanted full_attention or sliding_attention "
            f"for each of {count} layers"
        )
    experts = more.pop("experts", lambda i: None)
    rotated = more.pop("rotated", lambda i: True)
    bases = more.pop("bases", {})
    each = [
        Layer(
            window if kind == "sliding_attention" else 0,
            rotary(c, head_width, kind, bases.get(kind, 10000.0)) if rotated(i) else None,
            experts(i),
        )
        for i, kind in enumerate(names)
    ]
    biased = ("q", "k", "v", "out") if c.flag("attention_bias", False) else ()
    biased += ("up", "down") if c.flag("mlp_bias", False) else ()
    layers = Stack(
        **{
            "width": width,
            "heads": heads,
            "kv_heads": c.whole("num_key_value_heads", heads),
            "head_width": head_width,
            "between": c.whole("intermediate_size"),
            "layers": tuple(each),
            "norm": "rms",
            "eps": c.number("rms_norm_eps", 1e-6),
            "activation": c.one_of(act, CURVES, "silu"),
            "gated": True,
            "bias": biased,
            "causal": True,
        }
        | more
    )
    return Decoder(
        c.whole("vocab_size"),
        c.whole("max_position_embeddings", 2048),
        layers,
        tied=c.flag("tie_word_embeddings", tied),
        factor=factor,
        cap=c.number("final_logit_softcapping", 0.0),
    )


def qwen2(c: Config, **more: Any) -> Decoder:
    first = c.get("max_window_layers", 28)
    slides = c.flag("use_sliding_window", False)
    return llama(c, kinds=lambda i: slides and i >= first, **more)


def qwen2_moe(c: Config, shared: bool = True, **more: Any) -> Decoder:
    step, dense = c.whole("decoder_sparse_step", 1), c.get("mlp_only_layers", [])
    found = Experts(
        c.whole("num_experts" if c.data.get("num_experts") else "num_local_experts"),
        c.whole("num_experts_per_tok"),
        c.whole("moe_intermediate_size"),
        c.flag("norm_topk_prob", False),
        c.whole("shared_expert_intermediate_size") if shared else 0,
    )
    slides = c.flag("use_sliding_window", False)
    first = c.get("max_window_layers", 28)
    return llama(
        c,
        experts=lambda i: found if i not in dense and (i + 1) % step == 0 else None,
        kinds=lambda i: slides and (i + 1) % 2 and i < first,
        **more,
    )


def qwen2_moe_first(c: Config) -> Decoder:
    return qwen2_moe(c, bias=("q", "k", "v") if c.flag("qkv_bias", True) else ())


def mixtral(c: Config) -> Decoder:
    found = Experts(
        c.whole("num_local_experts"), c.whole("num_experts_per_tok"), c.whole("intermediate_size")
    )
    return llama(c, experts=lambda i: found)


def gemma(c: Config, **more: Any) -> Decoder:
    act = "hidden_activation" if c.data.get("hidden_activation") else "hidden_act"
    if c.data.get(act) == "gelu":  # older files say so and mean this
        c = Config({**c.data, act: "gelu_pytorch_tanh"}, c.where)
    factor = c.whole("hidden_size") ** 0.5
    return llama(c, tied=True, factor=factor, act=act, offset=1.0, **more)


def gemma2(c: Config, **more: Any) -> Decoder:
    only(c, use_bidirectional_attention=False)
    scale = c.number("query_pre_attn_scalar", 256) ** -0.5
    cap = c.number("attn_logit_softcapping", 0.0)
    more = {"kinds": lambda i: i % 2 == 0, **more}
    return gemma(c, order="both", scale=scale, cap=cap, **more)


def gemma3(c: Config) -> Decoder:
    only(c, attn_logit_softcapping=0)  # which transformers leaves out
    pattern = c.whole("sliding_window_pattern", c.whole("_sliding_window_pattern", 6))
    local = c.number("rope_local_base_freq", 10000.0)
    bases = {"full_attention": c.number("rope_theta", 1e6), "sliding_attention": local}
    if not c.get("rope_parameters", {}):  # older files scale the whole layers alone
        plain = {"rope_type": "default", "rope_theta": local}
        whole = {"rope_theta": bases["full_attention"], **c.get("rope_scaling", {})}
        both = {"full_attention": whole, "sliding_attention": plain}
        c = Config({**c.data, "rope_parameters": both}, c.where)
    return gemma2(c, kinds=lambda i: (i + 1) % pattern, bases=bases, qk_norm="head")


def olmo(c: Config) -> Decoder:
    return llama(c, norm="bare", eps=1e-5, clip=c.number("clip_qkv", 0.0))


def olmo3(c: Config) -> Decoder:
    if not c.get("rope_parameters", {}):  # older files scale the whole layers alone
        plain = {"rope_type": "default", "rope_theta": c.number("rope_theta", 10000.0)}
        both = {"full_attention": {**plain, **c.get("rope_scaling", {})}}
        c = Config({**c.data, "rope_parameters": both | {"sliding_attention": plain}}, c.where)
    return llama(c, order="inside", qk_norm="whole", kinds=lambda i: (i + 1) % 4)


def granite(c: Config) -> Decoder:
    found = llama(
        c, factor=c.number("embedding_multiplier", 1.0), scale=c.number("attention_multiplier", 1.0)
    )
    layers = replace(found.stack, factor=c.number("residual_multiplier", 1.0))
    return replace(found, stack=layers, divisor=c.number("logits_scaling", 1.0))


def smollm3(c: Config) -> Decoder:
    every = c.whole("no_rope_layer_interval", 4)
    plain = c.get("no_rope_layers", []) or [
        (i + 1) % every for i in range(c.whole("num_hidden_layers"))
    ]
    if len(plain) != c.whole("num_hidden_layers"):
        raise ValueError(
            f"{c.where}: no_rope_layers has {len(plain)} entries, one for each layer is wanted"
        )
    slides = c.flag("use_sliding_window", False)
    return llama(c, tied=True, rotated=lambda i: bool(plain[i]), kinds=lambda i: slides)


def call(config: Decoder, tokens: Any, **kw: Any) -> Any:
    return decoder(tokens, config, **kw)


def build(config: Decoder) -> Any:
    return decoder(Variable((1, 1)), config)


OLD = r"rotary_emb\.inv_freq$|\.attn\.(masked_)?bias$"  # buffers that older files have
_text = partial(Family, "text", call=call, build=build, ignored=OLD)

FAMILIES = {
    "gpt2": _text(gpt2, tensors=GPT2, prefix="transformer.", across="qkv|out|up|down"),
    "llama": _text(llama, tensors=LLAMA, prefix="model."),
    "mistral": _text(llama, tensors=LLAMA, prefix="model."),
    "qwen2": _text(partial(qwen2, bias=("q", "k", "v")), tensors=LLAMA, prefix="model."),
    "qwen3": _text(partial(qwen2, qk_norm="head"), tensors=LLAMA, prefix="model."),
    "gemma": _text(gemma, tensors=LLAMA, prefix="model."),
    "gemma2": _text(gemma2, tensors=LLAMA | BEHIND, prefix="model."),
    "gemma3_text": _text(gemma3, tensors=LLAMA | BEHIND, prefix="model."),
    "phi3": _text(partial(llama, joined=True), tensors=LLAMA | JOINED, prefix="model."),
    "smollm3": _text(smollm3, tensors=LLAMA, prefix="model."),
    "olmo": _text(olmo, tensors=LLAMA, prefix="model."),
    "olmo2": _text(
        partial(llama, order="inside", qk_norm="whole"), tensors=LLAMA | BEHIND, prefix="model."
    ),
    "olmo3": _text(olmo3, tensors=LLAMA | BEHIND, prefix="model."),
    "granite": _text(granite, tensors=LLAMA, prefix="model."),
    "mixtral": _text(mixtral, tensors=LLAMA | MIXTRAL, prefix="model."),
    "qwen2_moe": _text(qwen2_moe_first, tensors=LLAMA | EXPERTS, prefix="model."),
    "qwen3_moe": _text(
        partial(qwen2_moe, shared=False, qk_norm="head"), tensors=LLAMA | EXPERTS, prefix="model."
    ),
}
