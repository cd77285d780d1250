# SPDX-License-Identifier: Apache-2.0
"""WordPiece and Unigram of the C++ library beside the package tokenizers."""

from __future__ import annotations

import base64
import json
import struct
import unicodedata

import numpy as np
import pytest
import tokenizers as t
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from nnl.ext.native import library
from tests.native.test_tokenizer import KNOWN, MORE, ODD, WRITTEN, corpus

pytestmark = pytest.mark.skipif(library() is None, reason="the native engine is not built")


def charsmap(pairs):
    """SentencePiece's map of characters: a double array of the keys, and what they become."""
    tree, texts = {}, b""
    for key, value in pairs.items():
        node = tree
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[0] = len(texts)
        texts += value.encode() + b"\0"
    units, taken = {0: 0}, {0}

    def place(node, at):
        base = next(b for b in range(1, 1 << 20) if not any(b ^ c in taken for c in node))
        taken.update(base ^ c for c in node)
        units[at] |= (at ^ base) << 10 | (0 in node) << 8
        for c, below in node.items():
            units[base ^ c] = c if c else below | 1 << 31
            if c:
                place(below, base ^ c)

    place(tree, 0)
    array = [units.get(i, 0) for i in range((max(units) | 255) + 1)]
    return struct.pack(f"<I{len(array)}I", 4 * len(array), *array) + texts


# What SentencePiece's own map does, for some characters: among them keys of several, and parts
# of what is seen as one character.
MAP = charsmap(
    {unicodedata.normalize("NFD", c): c for c in "éüöàñ한각ç"}
    | {c: unicodedata.normalize("NFKC", c) for c in "ﬁ²Ⅷ㎏ｶﾞＡＢ…½"}
    | dict.fromkeys("\t\n\r\u3000\u00a0\u2003", " ")
    | dict.fromkeys("\u200b\ufeff\x7f", "")
    | {"ｶﾞ": "ガ", "\r\n": " "}
)
SPM = [normalizers.Precompiled(MAP), normalizers.Strip(left=False, right=True)]
SPM.append(normalizers.Replace(t.Regex(" {2,}"), "▁"))
QUOTES = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
ALBERT = [*QUOTES, normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
BLANKS = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
WORDS, UNIGRAMS = models.WordPiece, models.Unigram
# name: (model, normalizer, pre_tokenizer, decoder)
FAMILIES = {
    "bert": (
        WORDS, normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer(),
        decoders.WordPiece(),
    ),
    "bert-cased": (
        WORDS, normalizers.BertNormalizer(lowercase=False), pre_tokenizers.BertPreTokenizer(),
        decoders.WordPiece(cleanup=False),
    ),
    "bert-accents": (
        WORDS,
        normalizers.BertNormalizer(
            clean_text=False, handle_chinese_chars=False, strip_accents=False
        ),
        pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("merged_with_next")]
        ),
        decoders.WordPiece(),
    ),
    "t5": (
        UNIGRAMS, normalizers.Sequence(SPM), pre_tokenizers.Metaspace(), decoders.Metaspace(),
    ),
    "xlm-roberta": (
        UNIGRAMS, normalizers.Precompiled(MAP), pre_tokenizers.Sequence(BLANKS),
        decoders.Metaspace(),
    ),
    "albert": (
        UNIGRAMS, normalizers.Sequence([*ALBERT, *SPM]), pre_tokenizers.Metaspace(),
        decoders.Metaspace(),
    ),
    "bytes": (
        UNIGRAMS, normalizers.Sequence([normalizers.NFKC(), *SPM[1:]]),
        pre_tokenizers.Metaspace(prepend_scheme="first", split=False),
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")]),
    ),
}  # fmt: skip
SPECIAL = ["<pad>", "<unk>", "<s>", "</s>", "[MASK]"]
NAMED_BYTES = [f"<0x{b:02X}>" for b in range(256)]


@pytest.fixture(scope="module")
def trained():
    made = {}

    def tokenizer(name):
        if name in made:
            return made[name]
        kind, normalizer, pre, decoder = FAMILIES[name]
        found = t.Tokenizer(kind(unk_token="<unk>") if kind is WORDS else kind())
        found.normalizer, found.pre_tokenizer, found.decoder = normalizer, pre, decoder
        given = {"vocab_size": 1200, "special_tokens": SPECIAL, "show_progress": False}
        if kind is WORDS:
            trainer = trainers.WordPieceTrainer(**given)
        else:
            trainer = trainers.UnigramTrainer(unk_token="<unk>", **given)
        text = corpus()
        found.train_from_iterator(
            [*text[-1:], *(word for part in text[:6] for word in part.split(" "))], trainer
        )
        if name == "bytes":
            said = json.loads(found.to_str())
            said["model"]["byte_fallback"] = True
            said["model"]["vocab"] += [[byte, -20.0] for byte in NAMED_BYTES]
            found = t.Tokenizer.from_str(json.dumps(said))
        found.add_tokens(MORE)
        ids = [(token, found.token_to_id(token)) for token in ("<s>", "</s>")]
        found.post_processor = (
            processors.BertProcessing(ids[1], ids[0]) if name == "bert"
            else processors.RobertaProcessing(ids[1], ids[0]) if name == "xlm-roberta"
            else processors.TemplateProcessing("$A </s>", None, ids)
        )  # fmt: skip
        made[name] = found, library().Tokenizer(found.to_str())
        return made[name]

    return tokenizer


# The package has several tables of Unicode, some of them old: what has never changed since 3.2.
OLD = unicodedata.ucd_3_2_0
STEADY = [c for c in KNOWN if OLD.category(c) == unicodedata.category(c)]
STEADY = [c for c in STEADY if OLD.normalize("NFKD", c) == unicodedata.normalize("NFKD", c)]
STEADY = [c for c in STEADY if c not in "\u180e\u166d" and not "\ua7c0" < c < "\ua7f8"]
MARKED = ["\u0301", "\u0308", "\u093e", "\u0e33", "\u200d", "\ufe0f", "\uff9e", "\u0600", "\u0d4e"]
MORE_WRITTEN = ["\r\n", "  ", "   ", "``", "''", "do not", "can't", "unaffable", "...", "a" * 120]
MORE_WRITTEN += [*"ﬁ²Ⅷ㎏ＡİΣẞ㐀", "ｶﾞ", "Ａ\u0301", "ＡＢ", "中文", "[MASK]"]


def strings(count, seed):
    rng = np.random.default_rng(seed)
    texts, pool = "".join(corpus()), [c for c in WRITTEN + ODD + MORE_WRITTEN if c != "\u11a8"]
    for i in range(count):
        n = int(rng.integers(1, 30))
        if i % 4 == 0:
            yield "".join(STEADY[k] for k in rng.integers(len(STEADY), size=n))
        elif i % 4 == 1:
            at = int(rng.integers(len(texts) - 200))
            yield texts[at : at + 5 * n]
        elif i % 4 == 2:
            yield "".join(pool[k] for k in rng.integers(len(pool), size=n))
        else:
            both = pool + 6 * MARKED + STEADY[:600]
            yield "".join(both[k] for k in rng.integers(len(both), size=n))


@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_and_texts_are_those_of_the_package(trained, name):
    theirs, own = trained(name)
    rng = np.random.default_rng(1)
    for text in strings(1500, 0):
        want = theirs.encode(text).ids
        assert own.encode(text.encode(), True) == want, repr(text)
        drawn = rng.integers(theirs.get_vocab_size() + 5, size=12).tolist()
        for tokens in (want, drawn):
            assert own.decode(tokens).decode() == theirs.decode(tokens), tokens


def changed(trained, name, **parts):
    said = json.loads(trained(name)[0].to_str())
    for key, value in parts.items():
        said[key] = said[key] | value if isinstance(said[key], dict) else value
    return json.dumps(said)


@pytest.mark.parametrize("name, parts, text", [
    ("bert", {"model": {"unk_token": "[NIL]"}}, "unk_token is [NIL], which is no token"),
    ("bert", {"model": {"vocab": {"a": 2**40}}}, f"the token a is {2**40}"),
    ("bert", {"post_processor": {"sep": ["</s>"]}}, "the post_processor has no sep"),
    ("t5", {"model": {"vocab": []}}, "the model has no tokens"),
    ("t5", {"model": {"vocab": [["a"]]}}, "a token of the model has no score"),
    ("t5", {"model": {"unk_id": 10**6}}, "unk_id is 1000000, which is no token"),
    ("xlm-roberta", {"normalizer": {"precompiled_charsmap": "?"}}, "charsmap is no base64"),
    ("xlm-roberta", {"normalizer": {"precompiled_charsmap": "/////w=="}}, "charsmap is damaged"),
])  # fmt: skip
def test_what_is_damaged_is_named(trained, name, parts, text):
    with pytest.raises(ValueError, match="^Tokenizer: ") as found:
        library().Tokenizer(changed(trained, name, **parts))
    assert text in str(found.value)


def test_a_damaged_map_of_characters_reads_nothing_else(trained):
    said = json.loads(trained("xlm-roberta")[0].to_str())
    rng = np.random.default_rng(0)
    for _ in range(200):
        raw = bytearray(MAP)
        for at in rng.integers(4, len(raw), 8):
            raw[at] = rng.integers(256)
        said["normalizer"]["precompiled_charsmap"] = base64.b64encode(raw).decode()
        own = library().Tokenizer(json.dumps(said))
        own.encode("ﬁ e\u0301 Ａ 한 \r\n x".encode(), True)


def test_characters_that_are_no_tokens_need_an_unknown_one(trained):
    own = library().Tokenizer(changed(trained, "t5", model={"unk_id": None}))
    with pytest.raises(ValueError, match="the text has characters that are no tokens"):
        own.encode("a \U0001f642".encode(), True)
