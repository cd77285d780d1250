# SPDX-License-Identifier: Apache-2.0
"""Measures of texts against sacrebleu, rouge_score and jiwer."""

import numpy as np
import pytest

from nnl import metrics as M
from nnl.core.arrays.spec import ShapeError

WORDS = "a small cat sat on the old mat and saw one big dog".split()
rng = np.random.default_rng(0)
TRUTH = [" ".join(rng.choice(WORDS, rng.integers(4, 12))) for _ in range(30)]
GUESS = [
    " ".join(
        w if rng.random() < 0.8 else rng.choice(WORDS) for w in t.split() if rng.random() < 0.9
    )
    or "a"
    for t in TRUTH
]


def test_bleu_and_chrf_are_those_of_sacrebleu():
    sacrebleu = pytest.importorskip("sacrebleu")
    others = TRUTH[1:] + TRUTH[:1]
    want = sacrebleu.corpus_bleu(GUESS, [TRUTH, others], smooth_method="none", tokenize="none")
    references = [[a.split(), b.split()] for a, b in zip(TRUTH, others, strict=True)]
    found = M.bleu(references, [t.split() for t in GUESS])
    assert found == pytest.approx(want.score / 100) and 0.1 < found < 0.95
    want = sacrebleu.corpus_chrf(GUESS, [TRUTH])
    assert M.chrf(TRUTH, GUESS) == pytest.approx(want.score / 100, rel=1e-6)


def test_rouge_is_that_of_rouge_score():
    scorer = pytest.importorskip("rouge_score.rouge_scorer")
    theirs = scorer.RougeScorer(["rouge1", "rouge2", "rougeL"])
    every = [theirs.score(t, p) for t, p in zip(TRUTH, GUESS, strict=True)]
    t, p = ([s.split() for s in texts] for texts in (TRUTH, GUESS))
    for name, found in (
        ("rouge1", M.rouge_n(t, p)),
        ("rouge2", M.rouge_n(t, p, 2)),
        ("rougeL", M.rouge_l(t, p)),
    ):
        assert found == pytest.approx(np.mean([e[name].fmeasure for e in every])), name


def test_error_rates_are_those_of_jiwer():
    jiwer = pytest.importorskip("jiwer")
    assert M.word_error_rate(TRUTH, GUESS) == pytest.approx(jiwer.wer(TRUTH, GUESS))
    assert M.character_error_rate(TRUTH, GUESS) == pytest.approx(jiwer.cer(TRUTH, GUESS))


def test_edit_distance_is_a_metric():
    words = ["", "a", "ab", "ba", "abc", "cab", "kitten", "sitting"]
    d = np.array([[M.edit_distance(a, b) for b in words] for a in words])
    assert (np.diag(d) == 0).all() and (d == d.T).all() and d[-1, -2] == 3 and d[0, -1] == 7
    assert (d[:, None] <= d[:, :, None] + d[None]).all()


def test_no_right_ngram_is_zero_and_not_an_error():
    assert M.bleu([[["a", "b"]]], [["c", "d"]]) == 0 == M.chrf(["ab"], ["cd"])
    assert M.rouge_n([["a"]], [[]]) == 0 == M.rouge_l([["a"]], [[]])


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: M.bleu([], []), ShapeError, "bleu: there are 0 true texts and 0 predicted"),
        (lambda: M.bleu([[]], [["a"]]), ValueError, r"truth\[0\] is \[\], wanted a list of ref"),
        (lambda: M.chrf("a", "b"), TypeError, "chrf: truth is one text, wanted a list"),
        (lambda: M.rouge_n([["a"]], []), ShapeError, "1 true texts and 0 predicted ones"),
        (lambda: M.word_error_rate([""], ["a"]), ValueError, "word_error_rate: all true texts are"),
        (lambda: M.perplexity([0.5]), ValueError, "perplexity: there is 0.5, wanted at most 0"),
    ],
)
def test_bad_arguments_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call()
