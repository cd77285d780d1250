# SPDX-License-Identifier: Apache-2.0
"""Families that read a text, or hear one, and write another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import parameter_scope
from nnl.models.decoder import Decoder, decoder
from nnl.models.huggingface.decoders import CURVES
from nnl.models.huggingface.family import Config, Family, only
from nnl.models.stack import Cache, Layer, Stack
from nnl.models.t5 import T5, read, t5, written
from nnl.models.whisper import Whisper, hear, whisper

READ = {
    "layer{i}/attention/norm": "block.{i}.layer.0.layer_norm",
    "layer{i}/attention/q": "block.{i}.layer.0.SelfAttention.q",
    "layer{i}/attention/k": "block.{i}.layer.0.SelfAttention.k",
    "layer{i}/attention/v": "block.{i}.layer.0.SelfAttention.v",
    "layer{i}/attention/out": "block.{i}.layer.0.SelfAttention.o",
    "distances": "block.0.layer.0.SelfAttention.relative_attention_bias",
    "out": "final_layer_norm",
}
CROSS = {
    "layer{i}/cross/norm": "block.{i}.layer.1.layer_norm",
    "layer{i}/cross/q": "block.{i}.layer.1.EncDecAttention.q",
    "layer{i}/cross/k": "block.{i}.layer.1.EncDecAttention.k",
    "layer{i}/cross/v": "block.{i}.layer.1.EncDecAttention.v",
    "layer{i}/cross/out": "block.{i}.layer.1.EncDecAttention.o",
}


def _feed(part: int, gated: bool) -> dict[str, str]:
    dense = f"block.{{i}}.layer.{part}.DenseReluDense."
    return {
        "layer{i}/feed_forward/norm": f"block.{{i}}.layer.{part}.layer_norm",
        "layer{i}/gate": f"{dense}wi_0",
        "layer{i}/up": f"{dense}wi_1" if gated else f"{dense}wi",
        "layer{i}/down": f"{dense}wo",
    }


def t5_tensors(gated: bool) -> dict[str, str]:
    """The table of T5, whose feed-forward layers have other names with a gate."""
    found = {"tokens": "shared", "head": "lm_head"}
    found |= {f"reader/{k}": f"encoder.{v}" for k, v in (READ | _feed(1, gated)).items()}
    return found | {
        f"writer/{k}": f"decoder.{v}" for k, v in (READ | CROSS | _feed(2, gated)).items()
    }


def t5_sizes(c: Config) -> T5:
    kinds = {"relu": "relu", "gelu": "gelu", "gated-gelu": "gelu_tanh", "gated-silu": "silu"}
    activation = c.one_of("feed_forward_proj", kinds, "relu")
    heads = c.whole("num_heads")
    reader = Stack(
        c.whole("d_model"),
        heads,
        c.whole("d_ff"),
        (Layer(),) * c.whole("num_layers"),
        heads,
        c.whole("d_kv"),
        norm="rms",
        eps=c.number("layer_norm_epsilon", 1e-6),
        activation=activation,
        gated=c.get("feed_forward_proj", "relu").startswith("gated"),
        bias=(),
        scale=1.0,
    )
    count = c.whole("num_decoder_layers", len(reader.layers))
    tied = c.flag("tie_word_embeddings", True)
    return T5(
        c.whole("vocab_size"),
        reader,
        replace(reader, layers=(Layer(),) * count, causal=True, cross=True),
        c.whole("relative_attention_num_buckets", 32),
        c.whole("relative_attention_max_distance", 128),
        tied,
        c.flag("scale_decoder_outputs", tied),
    )


def build(config: T5) -> Any:
    return t5(Variable((1, 1)), Variable((1, 1)), config)


def call(config: T5, source: Any, tokens: Any, **kw: Any) -> Any:
    return t5(source, tokens, config, **kw)


def reads(config: T5, source: Any, keep: Any) -> dict[str, Any]:
    """What the writing part of a T5 attends to, by names."""
    found = {"keep": keep * 1.0}
    for i, (keys, values) in enumerate(read(source, config, keep), 1):
        found |= {f"keys{i}": keys, f"values{i}": values}
    return found


def writes(config: T5, tokens: Any, keep: Any, **kw: Any) -> Any:
    """Scores of what follows tokens, with what `reads` gives."""
    return written(tokens, config, pairs(kw, len(config.writer.layers)), keep, **kw)


def pairs(given: dict[str, Any], count: int) -> list[Cache]:
    """Keys and values of each layer, taken out of what is given by names."""
    return [Cache(given.pop(f"keys{i}"), given.pop(f"values{i}")) for i in range(1, count + 1)]


def _side(name: str) -> dict[str, str]:
    """The layers of one side of Whisper."""
    at = f"model.{name}.layers.{{i}}"
    return {
        "layer{i}/attention/norm": f"{at}.self_attn_layer_norm",
        "layer{i}/attention/q": f"{at}.self_attn.q_proj",
        "layer{i}/attention/k": f"{at}.self_attn.k_proj",
        "layer{i}/attention/v": f"{at}.self_attn.v_proj",
        "layer{i}/attention/out": f"{at}.self_attn.out_proj",
        "layer{i}/cross/norm": f"{at}.encoder_attn_layer_norm",
        "layer{i}/cross/q": f"{at}.encoder_attn.q_proj",
        "layer{i}/cross/k": f"{at}.encoder_attn.k_proj",
        "layer{i}/cross/v": f"{at}.encoder_attn.v_proj",
        "layer{i}/cross/out": f"{at}.encoder_attn.out_proj",
        "layer{i}/feed_forward/norm": f"{at}.final_layer_norm",
        "layer{i}/up": f"{at}.fc1",
        "layer{i}/down": f"{at}.fc2",
        "positions": f"model.{name}.embed_positions",
        "out": f"model.{name}.layer_norm",
    }


WHISPER = {
    "reader/conv1": "model.encoder.conv1",
    "reader/conv2": "model.encoder.conv2",
    **{f"reader/{k}": v for k, v in _side("encoder").items()},
    **{f"writer/{k}": v for k, v in _side("decoder").items()},
    "writer/tokens": "model.decoder.embed_tokens",
    "writer/head": "proj_out",
}


def whisper_sizes(c: Config) -> Whisper:
    only(c, scale_embedding=False)

    def part(name: str, **more: Any) -> Stack:
        return Stack(
            c.whole("d_model"),
            c.whole(f"{name}_attention_heads"),
            c.whole(f"{name}_ffn_dim"),
            (Layer(),) * c.whole(f"{name}_layers"),
            activation=c.one_of("activation_function", CURVES, "gelu"),
            bias=("q", "v", "out", "up", "down"),
            **more,
        )

    writer = Decoder(
        c.whole("vocab_size"),
        c.whole("max_target_positions", 448),
        part("decoder", causal=True, cross=True),
        learned=True,
        tied=c.flag("tie_word_embeddings", True),
    )
    frames = c.whole("max_source_positions", 1500)
    return Whisper(c.whole("num_mel_bins", 80), frames, part("encoder"), writer)


def build_whisper(config: Whisper) -> Any:
    return whisper(Variable((1, config.bands, 2 * config.frames)), Variable((1, 1)), config)


def call_whisper(config: Whisper, sound: Any, tokens: Any) -> Any:
    return whisper(sound, tokens, config)


def hears(config: Whisper, sound: Any) -> dict[str, Any]:
    """What the writing part of a Whisper attends to, by names."""
    found = {}
    for i, (keys, values) in enumerate(hear(sound, config), 1):
        found |= {f"keys{i}": keys, f"values{i}": values}
    return found


def writes_heard(config: Whisper, tokens: Any, **kw: Any) -> Any:
    """Scores of what follows tokens, with what `hears` gives."""
    found = pairs(kw, len(config.stack.layers))
    with parameter_scope("writer"):
        return decoder(tokens, config.writer, crossed=found, **kw)


AGAIN = r"^(en|de)coder\.embed_tokens\.weight$|EncDecAttention\.relative_attention_bias"
_t5 = Family(
    "answers",
    t5_sizes,
    call,
    build,
    lambda config: t5_tensors(config.reader.gated),
    ignored=AGAIN,
    reads=reads,
    writes=writes,
)
_whisper = Family(
    "speech",
    whisper_sizes,
    call_whisper,
    build_whisper,
    WHISPER,
    ignored=r"^proj_out\.weight$",
    reads=hears,
    writes=writes_heard,
)
FAMILIES = {"t5": _t5, "mt5": _t5, "whisper": _whisper}
