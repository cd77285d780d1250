# SPDX-License-Identifier: Apache-2.0
"""Language models from files of llama.cpp: GGUF has sizes, tokens and weights in one file."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from nnl.converters.weights.gguf import Tensor, read_gguf
from nnl.converters.weights.groups import Groups
from nnl.models import quantization
from nnl.models.huggingface.packed import shape_of
from nnl.models.huggingface.pretrained import Pretrained
from nnl.models.huggingface.stored import described
from nnl.models.huggingface.text import INSTALL, Text

__all__ = ["from_gguf"]

logger = logging.getLogger("nnl")

TENSORS = {
    "tokens": "token_embd",
    "positions": "position_embd",
    "layer{i}/attention/norm": "blk.{i}.attn_norm",
    "layer{i}/attention/qkv": "blk.{i}.attn_qkv",
    "layer{i}/attention/q": "blk.{i}.attn_q",
    "layer{i}/attention/k": "blk.{i}.attn_k",
    "layer{i}/attention/v": "blk.{i}.attn_v",
    "layer{i}/attention/q_norm": "blk.{i}.attn_q_norm",
    "layer{i}/attention/k_norm": "blk.{i}.attn_k_norm",
    "layer{i}/attention/out": "blk.{i}.attn_output",
    "layer{i}/attention/norm_after": "blk.{i}.post_attention_norm",
    "layer{i}/feed_forward/norm": "blk.{i}.ffn_norm",
    "layer{i}/feed_forward/norm_after": "blk.{i}.post_ffw_norm",
    "layer{i}/gate": "blk.{i}.ffn_gate",
    "layer{i}/gate_up": "blk.{i}.ffn_up",
    "layer{i}/up": "blk.{i}.ffn_up",
    "layer{i}/down": "blk.{i}.ffn_down",
    "out": "output_norm",
    "head": "output",
}
# general.architecture -> model_type
KNOWN = {
    "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma2": "gemma2", "gpt2": "gpt2",
    "phi3": "phi3", "olmo2": "olmo2",
}  # fmt: skip
# What a config.json calls an entry of the metadata, after the name of the architecture.
SIZES = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
SIZES_GPT2 = {
    "n_embd": "embedding_length",
    "n_inner": "feed_forward_length",
    "n_layer": "block_count",
    "n_head": "attention.head_count",
    "n_positions": "context_length",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
}
# tokenizer.ggml.token_type: of tokens that are no text, and that are found before all others
UNKNOWN, CONTROL, OWN = 2, 3, 4
# tokenizer.ggml.pre -> how a text is cut before byte pairs are joined; () as GPT-2 does.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS: dict[str, tuple[str, ...]] = {
    "gpt-2": (), "default": (), "llama-bpe": (_WORDS % "{1,3}",), "qwen2": (_WORDS % "",),
    "smollm": (
        r"\p{N}", r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    ),
}  # fmt: skip
EMBEDDED = ("token_embd.weight", "position_embd.weight")
# Of rotary positions: what their frequencies are divided by.
FREQS, LONG, SHORT = ROPES = (
    "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight",
)  # fmt: skip


def from_gguf(path: str | os.PathLike[str]) -> Pretrained:
    """The network of a GGUF file, with its parameters in the current scope.

    Weights in blocks keep their 4 or 8 bits (`Pretrained.quantize`; of 5 and 6 bits each takes 8);
    a table of tokens in blocks becomes float16, and keeps its codes where it scores, too.

    Args:
        path: Of the architecture llama (Mistral and SmolLM too), qwen2, qwen3, gemma2, phi3, olmo2
            or gpt2.
    Raises:
        ValueError: The file is damaged, has another architecture, type of tensor or scaling of its
            rotary positions, or tensors are missing or have no place; they are named.
        ShapeError: A tensor has another shape than the metadata says.
    Example:
        >>> with open("no.gguf", "wb") as f:
        ...     _ = f.write(b"GGUF" + bytes(20))
        >>> try:
        ...     models.from_gguf("no.gguf")
        ... except ValueError as error:
        ...     print(error)
        from_gguf: no.gguf: version 0, wanted 2 or 3 (and little endian)
    """
    where = f"from_gguf: {os.fspath(path)}"
    metadata, tensors = read_gguf(path, "from_gguf")
    source = config_of(metadata, tensors, where)
    model = _FromGguf(source, where)
    model.metadata = metadata
    model.family = replace(model.family, tensors=TENSORS, prefix="", across="(?!)")
    arrays: dict[str, Any] = {}
    groups: dict[str, Groups] = {}
    for name, tensor in tensors.items():
        if name in ROPES:
            continue
        try:
            found = (
                None if name in ("token_embd.weight", "position_embd.weight") else tensor.groups()
            )
        except ValueError as e:
            raise ValueError(f"{where}: {name}: {e}") from None
        if found is None:
            arrays[name] = tensor.array()
        else:
            groups[name], arrays[name] = found, shape_of(found)
    _as_trained(source, arrays, groups)
    embedded = tensors.get("token_embd.weight")
    if embedded is not None and embedded.format.decode is not None:
        arrays["token_embd.weight"] = arrays["token_embd.weight"].astype(np.float16)
    model.load(arrays, groups)
    if source["tie_word_embeddings"] and embedded is not None:
        scored = embedded.groups()
        if scored is not None:
            with model.scoped():
                quantization.put("tokens", scored)
    return model


class GgufText(Text):
    """The tokenizer that the metadata of a file describes: byte pairs as GPT-2 has them, or as
    SentencePiece has them."""

    def __init__(self, metadata: Mapping[str, Any], where: str) -> None:
        try:
            import tokenizers as t
        except ImportError as e:
            raise ImportError(f"{where}: its tokens are read by tokenizers: {INSTALL}") from e
        own = {k.removeprefix("tokenizer.ggml."): v for k, v in metadata.items()}
        tokens = own.get("tokens", [])
        kind, split = own.get("model"), own.get("pre", "default")
        if kind != "llama" and (kind != "gpt2" or split not in SPLITS):
            raise ValueError(
                f"{where}: tokenizer.ggml.model is {kind!r:.40} with pre {split!r:.40}, wanted "
                f"llama, or gpt2 with {', '.join(SPLITS)}; pass tokens instead of texts"
            )
        try:
            make = _sentence_pieces if kind == "llama" else _byte_pairs
            self.tokenizer = make(t, tokens, own)
        except Exception as e:  # what the package raises has no class of its own
            raise ValueError(f"{where}: its tokens are no byte pairs: {e}") from e
        kinds = own.get("token_type", [])
        of = dict(zip(tokens, kinds, strict=False))
        special = [t.AddedToken(x, special=True, normalized=False) for x in of if of[x] == CONTROL]
        self.tokenizer.add_special_tokens(special)
        self.tokenizer.add_tokens([t.AddedToken(x, normalized=False) for x in of if of[x] == OWN])
        self.where, begin = where, own.get("bos_token_id", -1)
        if own.get("add_bos_token", kind == "llama") and 0 <= begin < len(tokens):
            self.tokenizer.post_processor = t.processors.TemplateProcessing(
                single=[tokens[begin], "$A"], special_tokens=[(tokens[begin], begin)]
            )
        self.chat = metadata.get("tokenizer.chat_template")
        ends = (("bos_token", "bos_token_id"), ("eos_token", "eos_token_id"))
        self.settings = {
            name: tokens[own[key]] for name, key in ends if 0 <= own.get(key, -1) < len(tokens)
        }

    def template(self) -> str:
        """How a conversation becomes a text."""
        if not isinstance(self.chat, str):
            raise ValueError(f"{self.where}: the file has no chat template")
        return self.chat


def _byte_pairs(t: Any, tokens: list[str], own: Mapping[str, Any]) -> Any:
    pairs = [tuple(m.split(" ", 1)) for m in own.get("merges", [])]
    found = t.Tokenizer(t.models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    parts = [
        t.pre_tokenizers.Split(t.Regex(p), "isolated") for p in SPLITS[own.get("pre", "default")]
    ]
    level = t.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not parts)
    found.pre_tokenizer = t.pre_tokenizers.Sequence([*parts, level])
    found.decoder = t.decoders.ByteLevel()
    return found


def _sentence_pieces(t: Any, tokens: list[str], own: Mapping[str, Any]) -> Any:
    """The neighbours that make the token with the best score become it: merges, the best first."""
    vocabulary = {token: i for i, token in enumerate(tokens)}
    scores, kinds = own["scores"], own["token_type"]
    if not len(scores) == len(kinds) == len(tokens):
        raise ValueError(f"{len(tokens)} tokens, {len(scores)} scores, {len(kinds)} types")
    merges = []
    for i, token in enumerate(tokens):
        if kinds[i] in (UNKNOWN, CONTROL, OWN):
            continue
        for k in range(1, len(token)):
            a, b = vocabulary.get(token[:k]), vocabulary.get(token[k:])
            if a is not None and b is not None:
                merges.append((-scores[i], i, a, b))
    unknown = next((x for x, k in zip(tokens, kinds, strict=True) if k == UNKNOWN), None)
    found = t.Tokenizer(
        t.models.BPE(
            vocabulary, [(tokens[a], tokens[b]) for *_, a, b in sorted(merges)],
            unk_token=unknown, fuse_unk=True, byte_fallback=True,
        )
    )  # fmt: skip
    begins = own.get("add_space_prefix", True)
    blank = t.normalizers.Replace(" ", "▁")
    before = [t.normalizers.Prepend("▁")] if begins else []
    found.normalizer = t.normalizers.Sequence([*before, blank])
    decoders = [t.decoders.Replace("▁", " "), t.decoders.ByteFallback(), t.decoders.Fuse()]
    after = [t.decoders.Strip(" ", 1, 0)] if begins else []
    found.decoder = t.decoders.Sequence([*decoders, *after])
    return found


class _FromGguf(Pretrained):
    metadata: Mapping[str, Any]

    @cached_property
    def text(self) -> Text:
        return GgufText(self.metadata, self.where)

    def _language(self) -> bytes:
        try:
            return described(self.text, self.writer.ends)
        except ValueError as e:
            logger.warning("save_program: without a tokenizer: %s", e)
            return b""


def config_of(
    metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str
) -> dict[str, Any]:
    """What a config.json would say."""
    kind = metadata.get("general.architecture")
    if kind not in KNOWN:
        raise ValueError(
            f"{where}: general.architecture is {kind!r:.60}, known are {', '.join(KNOWN)}"
        )
    found: dict[str, Any] = {"model_type": KNOWN[kind]}
    for key, entry in (SIZES_GPT2 if kind == "gpt2" else SIZES).items():
        value = metadata.get(f"{kind}.{entry}")
        if value is not None:
            found[key] = round(value, 12) if isinstance(value, float) else value
    if kind != "gpt2":
        found |= _rotary(kind, metadata, tensors, where)
    table = tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise ValueError(f"{where}: there is no matrix token_embd.weight")
    found["vocab_size"] = table.shape[0]
    found["tie_word_embeddings"] = "output.weight" not in tensors
    found["attention_bias"] = kind == "llama" and "blk.0.attn_q.bias" in tensors
    ends = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    found["eos_token_id"] = list(dict.fromkeys(end for end in ends if end is not None))
    if kind == "gemma2":
        found["query_pre_attn_scalar"] = found.get("head_dim", 256)
    return found


def _rotary(
    kind: str, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str
) -> dict[str, Any]:
    """What a config.json would say of scaled rotary positions."""

    def said(name: str, default: Any = None) -> Any:
        return metadata.get(f"{kind}.rope.scaling.{name}", default)

    scaling = said("type", "none")
    factors = {
        name: tensors[name].array().reshape(-1).tolist() for name in ROPES if name in tensors
    }
    before = said("original_context_length")
    found: dict[str, Any] = {}
    if FREQS in factors:  # of Llama 3, where the metadata says nothing more
        factors = {LONG: factors[FREQS], SHORT: factors[FREQS]}
        found["attention_factor"] = 1.0
        before = before or metadata.get(f"{kind}.context_length")
    if LONG in factors and SHORT in factors:
        found |= {"long_factor": factors[LONG], "short_factor": factors[SHORT]}
        scaling = "longrope"
    elif scaling in ("linear", "yarn"):
        found["factor"] = said("factor", 1.0)
    elif scaling != "none":
        raise ValueError(
            f"{where}: {kind}.rope.scaling.type is {scaling!r:.40}, wanted none, linear, yarn, or "
            f"the tensors {LONG} and {SHORT}"
        )
    else:
        return {}
    own = said("attn_factor")
    if own is not None and "attention_factor" not in found:  # yarn multiplies its own by it
        mild = 0.1 * np.log(found["factor"]) + 1 if scaling == "yarn" else 1.0
        found["attention_factor"] = float(own * mild)
    more = {} if before is None else {"original_max_position_embeddings": before}
    return {"rope_scaling": {"rope_type": scaling, **found, **more}, **more}


def _as_trained(
    source: Mapping[str, Any], arrays: dict[str, Any], groups: dict[str, Groups]
) -> None:
    """Undo what llama.cpp's writer does: turns of Llama's queries and keys, Gemma's 1 + w."""
    kind = source["model_type"]
    if kind == "gemma2":
        for name in [n for n in arrays if n.endswith("norm.weight")]:
            arrays[name] = arrays[name].astype(np.float32) - 1
    if kind != "llama":
        return
    heads = source.get("num_attention_heads", 1)
    for part, count in (("q", heads), ("k", source.get("num_key_value_heads", heads))):
        for name in [n for n in arrays if f".attn_{part}." in n]:
            rows = arrays[name].shape[0]
            if not isinstance(count, int) or count < 1 or rows % (2 * count):
                continue  # refused by its shape
            order = np.arange(rows).reshape(count, rows // count // 2, 2).swapaxes(1, 2).reshape(-1)
            if name in groups:
                groups[name] = groups[name].rows(order)
            else:
                arrays[name] = arrays[name][order]
