# SPDX-License-Identifier: Apache-2.0
"""The C++ library's tokenizer beside the package tokenizers, for the families it knows."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import tokenizers as t
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from nnl.ext.native import library

pytestmark = pytest.mark.skipif(library() is None, reason="the native engine is not built")

ROOT = Path(__file__).resolve().parents[2]
ENDS = "'s|'t|'re|'ve|'m|'ll|'d"
GPT2 = ENDS + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WORDS = (
    rf"(?i:{ENDS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}%s| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
HIGH, LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def cased(ends, number):
    before = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{before}{HIGH}*{LOW}+{ends}|{before}{HIGH}+{LOW}*{ends}|{number}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


def level(*before, use_regex=False, prefix=False):
    parts = [
        pre_tokenizers.Split(t.Regex(p), "isolated") if isinstance(p, str) else p for p in before
    ]
    last = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=use_regex)
    return pre_tokenizers.Sequence([*parts, last]) if parts else last


BLANK = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
UNBLANK = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
BYTES = {"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}
# name: (arguments of BPE, normalizer, pre_tokenizer, decoder)
FAMILIES = {
    "gpt2": ({}, None, level(use_regex=True), decoders.ByteLevel()),
    "prefix": ({}, None, level(use_regex=True, prefix=True), decoders.ByteLevel()),
    "split": ({}, None, level(r"\p{N}", GPT2), decoders.ByteLevel()),
    "llama3": ({"ignore_merges": True}, None, level(WORDS % "{1,3}"), decoders.ByteLevel()),
    "qwen2": ({}, normalizers.NFC(), level(WORDS % ""), decoders.ByteLevel()),
    "smollm": (
        {}, None, level(pre_tokenizers.Digits(individual_digits=True), use_regex=True),
        decoders.ByteLevel(),
    ),
    "digits": ({}, None, level(pre_tokenizers.Digits(), use_regex=True), decoders.ByteLevel()),
    "gpt-4o": ({}, None, level(cased(f"(?i:{ENDS})?", r"\p{N}{1,3}")), decoders.ByteLevel()),
    "tekken": ({}, None, level(cased("", r"\p{N}")), decoders.ByteLevel()),
    "llama2": (
        BYTES, normalizers.Sequence(BLANK), None,
        decoders.Sequence([*UNBLANK, decoders.Strip(" ", 1, 0)]),
    ),
    "gemma": (
        BYTES, normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous"),
        decoders.Sequence(UNBLANK),
    ),
    "metaspace": (
        BYTES, None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False),
        decoders.Sequence([decoders.Metaspace(prepend_scheme="first"), *UNBLANK[1:]]),
    ),
    "pieces": (
        {"unk_token": "<unk>"}, None, pre_tokenizers.Metaspace(prepend_scheme="always"),
        decoders.Metaspace(prepend_scheme="always"),
    ),
    "plain": ({}, None, pre_tokenizers.Split("e", "merged_with_next"), None),
}  # fmt: skip
SPECIAL = [
    t.AddedToken("<s>", special=True, normalized=False),
    t.AddedToken("<|end|>", special=True, normalized=False, rstrip=True),
    t.AddedToken("<|endless|>", special=True, normalized=False),
]
MORE = [
    t.AddedToken("<mask>", lstrip=True, normalized=False),
    t.AddedToken("\n\n", normalized=False),
    t.AddedToken("a thing", normalized=True),
]


def corpus():
    return [p.read_text(encoding="utf-8") for p in sorted(ROOT.glob("nnl/core/*.py"))[:30]] + [
        "Größe und Wärme über Äpfel, l'été où ça mène; Цена 45 рублей, 東京は日本の首都 " * 20,
    ]


@pytest.fixture(scope="module")
def trained():
    made = {}

    def tokenizer(name):
        if name in made:
            return made[name]
        options, normalizer, pre, decoder = FAMILIES[name]
        found = t.Tokenizer(models.BPE(**options))
        if normalizer is not None:
            found.normalizer = normalizer
        if pre is not None:
            found.pre_tokenizer = pre
        if decoder is not None:
            found.decoder = decoder
        special = ["<unk>", *(f"<0x{b:02X}>" for b in range(256))] if options == BYTES else []
        trainer = trainers.BpeTrainer(
            vocab_size=1500,
            special_tokens=["<unk>", *special[1:]] if "unk_token" in options else [],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        found.train_from_iterator(corpus() if pre is not None else _words(), trainer)
        if special:  # bytes are plain tokens
            data = json.loads(found.to_str())
            data["added_tokens"] = [a for a in data["added_tokens"] if a["content"] == "<unk>"]
            found = t.Tokenizer.from_str(json.dumps(data))
        found.add_special_tokens(SPECIAL)
        found.add_tokens(MORE)
        begin = found.token_to_id("<s>")
        found.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", begin)])
        made[name] = found, library().Tokenizer(found.to_str())
        return made[name]

    return tokenizer


def _words():  # without a pre_tokenizer a text is one piece, which training takes long for
    return [word for text in corpus()[:4] for line in text.splitlines() for word in line.split(" ")]


# Categories are those of the Python that has built the library.
KNOWN = [chr(c) for c in range(0x30000) if unicodedata.category(chr(c)) not in ("Cs", "Cn", "Co")]
ODD = list(
    "\u00a0\u2003\u3000\u0085\u200b\u200d\ufeff\u0301\u0308\u0327\u1100\u1161\u11a8ſİıßﬆ'’Ⅷ²٣"
)
WRITTEN = [
    *" \t\n\r'’._/-", "  ", "\r\n", "\n\n", "'s", "'LL", "'Ve", "don't", " I'm", "the", " cat",
    "Hello", "HELLO", "camelCase", "x1", "1234567", "3.14", "東京", "🙂", "👩‍👩‍👧", "🇩🇪", "é",
    "e\u0301", "한국", "<s>", "<|end|>", "<|endless|>", " <mask>", "<mask>", "a thing",
    "if (a == b) {", "}", "/*", "//", "#!", "\x00", "\x7f",
]  # fmt: skip


def strings(count, seed):
    rng = np.random.default_rng(seed)
    texts = "".join(corpus())
    for _ in range(count):
        n, kind = int(rng.integers(1, 30)), int(rng.integers(4))
        if kind == 0:
            yield "".join(KNOWN[i] for i in rng.integers(len(KNOWN), size=n))
        elif kind == 1:
            pool = WRITTEN + ODD
            yield "".join(pool[i] for i in rng.integers(len(pool), size=n))
        elif kind == 2:
            at = int(rng.integers(len(texts) - 200))
            yield texts[at : at + 5 * n]
        else:
            pool = WRITTEN + [KNOWN[i] for i in rng.integers(0x250, size=20)] + ODD
            yield "".join(pool[i] for i in rng.integers(len(pool), size=n))


@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_and_texts_are_those_of_the_package(trained, name):
    theirs, own = trained(name)
    rng = np.random.default_rng(1)
    size = theirs.get_vocab_size()
    for i, text in enumerate(strings(1500, 0)):
        want = theirs.encode(text).ids
        assert own.encode(text.encode(), True) == want, repr(text)
        if i % 3 == 0:
            assert (
                own.encode(text.encode(), False)
                == theirs.encode(text, add_special_tokens=False).ids
            )
        drawn = rng.integers(size + 5, size=12).tolist()
        for tokens in (want, drawn):
            assert own.decode(tokens).decode() == theirs.decode(tokens), tokens


@pytest.mark.parametrize("name", ["gpt2", "llama2"])
def test_pieces_of_a_stream_are_whole_characters(trained, name):
    theirs, own = trained(name)
    for text in ("a€b🙂 e\u0301!", "日本語 and\n\nمرحبا", "\ufffd x \ufffd"):
        tokens = theirs.encode(text).ids
        pieces = own.pieces(tokens)
        assert "".join(pieces) == theirs.decode(tokens)
        assert "\ufffd" in text or not any("\ufffd" in p for p in pieces)
    assert own.pieces(theirs.encode("🙂").ids[:-1])[-1] == "\ufffd" * (1 if name == "gpt2" else 3)


def test_what_is_no_utf8_counts_as_the_package_counts_it(trained):
    theirs, own = trained("gpt2")
    rng = np.random.default_rng(0)
    for _ in range(2000):
        raw = bytes(
            rng.choice([0x41, 0x20, 0x80, 0xBF, 0xC2, 0xE0, 0xED, 0xE2, 0xF0, 0xF4, 0xFF], 8)
        )
        assert own.encode(raw, True) == theirs.encode(raw.decode(errors="replace")).ids


def changed(trained, **parts):
    return json.dumps(json.loads(trained("gpt2")[0].to_str()) | parts)


@pytest.mark.parametrize("parts, text", [
    ({"pre_tokenizer": {"type": "Whitespace"}}, "the pre_tokenizer Whitespace is not known"),
    ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a+"}, "behavior": "Isolated"}},
     "the expression a+ is not known"),
    ({"pre_tokenizer": {"type": "Split", "pattern": {"String": "a"}, "behavior": "Contiguous"}},
     "the behavior Contiguous is not known"),
    ({"normalizer": {"type": "Nmt"}}, "the normalizer Nmt is not known"),
    ({"decoder": {"type": "CTC"}}, "the decoder CTC is not known"),
    ({"post_processor": {"type": "PairProcessing"}}, "the post_processor PairProcessing is not"),
    ({"model": {"type": "WordLevel"}}, "the model WordLevel is not known, wanted BPE, W"),
    ({"model": {"type": "BPE", "dropout": 0.1}}, "the model has dropout"),
    ({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}, "the token a is -1"),
    ({"model": {"type": "BPE", "vocab": {"a": 1}, "merges": ["a b"]}}, "merge of a and b is"),
    ({"model": {"type": "BPE", "vocab": {"a": 1}, "merges": [["a"]]}}, "a merge is no pair"),
    ({"model": {"type": "BPE", "vocab": {}, "merges": [], "unk_token": "u"}}, "unk_token is u"),
    ({"model": {"type": "BPE"}}, "'vocab' is missing"),
    ({"added_tokens": [{"id": 1, "content": "x", "single_word": True}]}, "x is a single_word"),
    ({"added_tokens": [{"id": -1, "content": "x"}]}, "the added token x is -1"),
    ({"normalizer": {"type": "Replace", "pattern": {"Regex": "a"}, "content": ""}},
     "the expression a is not known"),
])  # fmt: skip
def test_what_is_not_known_is_named(trained, parts, text):
    with pytest.raises(ValueError, match="^Tokenizer: ") as found:
        library().Tokenizer(changed(trained, **parts))
    assert text in str(found.value)
