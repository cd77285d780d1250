# SPDX-License-Identifier: Apache-2.0
"""Families of models that read text as a whole."""

from __future__ import annotations

from functools import partial
from typing import Any

from nnl.core.graph.variable import Variable
from nnl.models.encoder import Encoder, encoder
from nnl.models.huggingface.decoders import CURVES
from nnl.models.huggingface.family import Config, Family, only
from nnl.models.stack import Layer, Stack

BERT = {
    "tokens": "bert.embeddings.word_embeddings",
    "positions": "bert.embeddings.position_embeddings",
    "segments": "bert.embeddings.token_type_embeddings",
    "embeddings": "bert.embeddings.LayerNorm",
    "layer{i}/attention/q": "bert.encoder.layer.{i}.attention.self.query",
    "layer{i}/attention/k": "bert.encoder.layer.{i}.attention.self.key",
    "layer{i}/attention/v": "bert.encoder.layer.{i}.attention.self.value",
    "layer{i}/attention/out": "bert.encoder.layer.{i}.attention.output.dense",
    "layer{i}/attention/norm": "bert.encoder.layer.{i}.attention.output.LayerNorm",
    "layer{i}/up": "bert.encoder.layer.{i}.intermediate.dense",
    "layer{i}/down": "bert.encoder.layer.{i}.output.dense",
    "layer{i}/feed_forward/norm": "bert.encoder.layer.{i}.output.LayerNorm",
    "summary": "bert.pooler.dense",
    "masked/dense": "cls.predictions.transform.dense",
    "masked/norm": "cls.predictions.transform.LayerNorm",
    "masked/b": "cls.predictions.bias",
    "classes": "classifier",
}
ROBERTA = {k: v.replace("bert.", "roberta.", 1) for k, v in BERT.items()} | {
    "masked/dense": "lm_head.dense",
    "masked/norm": "lm_head.layer_norm",
    "masked/b": "lm_head.bias",
    "classes/dense": "classifier.dense",
    "classes": "classifier.out_proj",
}
DISTILBERT = {
    "tokens": "distilbert.embeddings.word_embeddings",
    "positions": "distilbert.embeddings.position_embeddings",
    "embeddings": "distilbert.embeddings.LayerNorm",
    "layer{i}/attention/q": "distilbert.transformer.layer.{i}.attention.q_lin",
    "layer{i}/attention/k": "distilbert.transformer.layer.{i}.attention.k_lin",
    "layer{i}/attention/v": "distilbert.transformer.layer.{i}.attention.v_lin",
    "layer{i}/attention/out": "distilbert.transformer.layer.{i}.attention.out_lin",
    "layer{i}/attention/norm": "distilbert.transformer.layer.{i}.sa_layer_norm",
    "layer{i}/up": "distilbert.transformer.layer.{i}.ffn.lin1",
    "layer{i}/down": "distilbert.transformer.layer.{i}.ffn.lin2",
    "layer{i}/feed_forward/norm": "distilbert.transformer.layer.{i}.output_layer_norm",
    "masked/dense": "vocab_transform",
    "masked/norm": "vocab_layer_norm",
    "masked/b": "vocab_projector.bias",
    "classes/dense": "pre_classifier",
    "classes": "classifier",
}


def bert(c: Config, roberta: bool = False) -> Encoder:
    only(c, position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    width, heads = c.whole("hidden_size"), c.whole("num_attention_heads")
    layers = Stack(
        width,
        heads,
        c.whole("intermediate_size"),
        (Layer(),) * c.whole("num_hidden_layers"),
        heads,
        width // heads,
        eps=c.number("layer_norm_eps", 1e-12),
        order="after",
        activation=c.one_of("hidden_act", CURVES, "gelu"),
    )
    return Encoder(
        c.whole("vocab_size"),
        c.whole("max_position_embeddings", 512),
        layers,
        c.whole("type_vocab_size", 2),
        c.whole("pad_token_id", 1, 0) if roberta else None,
        bend="tanh" if roberta else "summary",
        **_heads(c),
    )


def distilbert(c: Config) -> Encoder:
    width, heads = c.whole("dim", 768), c.whole("n_heads", 12)
    layers = Stack(
        width,
        heads,
        c.whole("hidden_dim", 4 * width),
        (Layer(),) * c.whole("n_layers", 6),
        heads,
        width // heads,
        eps=1e-12,
        order="after",
        activation=c.one_of("activation", CURVES, "gelu"),
    )
    longest = c.whole("max_position_embeddings", 512)
    return Encoder(c.whole("vocab_size"), longest, layers, segments=0, bend="relu", **_heads(c))


def _heads(c: Config) -> dict[str, Any]:
    only(c, tie_word_embeddings=True)
    names = str(c.get("architectures", []))
    found = {"masked": "MaskedLM", "classes": "SequenceClassification"}
    heads = tuple(k for k, name in found.items() if name in names)
    if not heads and "distilbert" not in c.get("model_type", ""):
        heads = ("summary",)
    classes = len(c.get("id2label", {})) or c.whole("num_labels", 2)
    return {"heads": heads, "classes": classes}


def call(config: Encoder, tokens: Any, **kw: Any) -> Any:
    return encoder(tokens, config, **kw)


def build(config: Encoder) -> Any:
    return [encoder(Variable((1, 1)), config, head=head) for head in ("", *config.heads)]


# of what is written twice, or of tasks that nobody does any more
TWICE = "|".join(
    (
        r"position_ids$",
        r"^cls\.seq_relationship\.",
        r"^(cls\.predictions|lm_head)\.decoder\.",
        r"^vocab_projector\.weight$",
    )
)
_vectors = partial(Family, "vectors", call=call, build=build, ignored=TWICE)

FAMILIES = {
    "bert": _vectors(
        bert,
        tensors=BERT,
        prefix="bert.",
        heads={"summary": r"pooler\.", "masked": r"^cls\.predictions\.", "classes": "^classifier"},
    ),
    "roberta": _vectors(
        partial(bert, roberta=True),
        tensors=ROBERTA,
        prefix="roberta.",
        heads={"summary": r"pooler\.", "masked": "^lm_head", "classes": "^classifier"},
    ),
    "distilbert": _vectors(
        distilbert,
        tensors=DISTILBERT,
        prefix="distilbert.",
        heads={"masked": "^vocab_", "classes": "^classifier"},
    ),
}
FAMILIES["xlm-roberta"] = FAMILIES["camembert"] = FAMILIES["roberta"]
