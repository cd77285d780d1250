# SPDX-License-Identifier: Apache-2.0
"""Texts that were written or heard, against those that were wanted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl.core.arrays.spec import ShapeError
from nnl.metrics.checks import real

Tokens = Sequence[Any]


def edit_distance(a: Tokens, b: Tokens) -> int:
    """The least number of items to insert, delete and replace to make b of a.

    Source: Levenshtein, 1966.
    Example:
        >>> edit_distance("kitten", "sitting")
        3
    """
    known: dict[Any, int] = {}
    x, y = (np.array([known.setdefault(t, len(known)) for t in s], np.int64) for s in (a, b))
    steps = np.arange(len(y) + 1)
    row = steps
    for i, item in enumerate(x, 1):
        changed = np.empty_like(row)
        changed[0] = i
        changed[1:] = np.minimum(row[1:] + 1, row[:-1] + (y != item))
        row = np.minimum.accumulate(changed - steps) + steps  # insertions, one after another
    return int(row[-1])


def word_error_rate(truth: Sequence[str], predicted: Sequence[str]) -> float:
    """Edits of words, by the number of true words: of all texts together.

    Raises:
        ShapeError, ValueError: Numbers of texts differ, or no true text has a word.
    Example:
        >>> word_error_rate(["the cat sat"], ["the bat"])
        0.6666666666666666
    """
    return _error_rate(
        "word_error_rate", [t.split() for t in truth], [t.split() for t in predicted]
    )


def character_error_rate(truth: Sequence[str], predicted: Sequence[str]) -> float:
    """Edits of characters, by the number of true ones: of all texts together.

    Raises:
        ShapeError, ValueError: As of word_error_rate.
    Example:
        >>> character_error_rate(["abcd"], ["abxd"])
        0.25
    """
    return _error_rate("character_error_rate", truth, predicted)


def bleu(truth: Sequence[Sequence[Tokens]], predicted: Sequence[Tokens], n: int = 4) -> float:
    r"""BLEU of a corpus: n-grams that a reference has, times a penalty for what is short.

    $$BP \exp \frac{1}{n} \sum_{k=1}^n \log p_k,\quad BP = \min(1, e^{1 - r / c})$$

    Args:
        truth: For each text its references, sequences of tokens.
        predicted: Sequences of tokens.
        n: Longest n-grams.
    Returns:
        0 to 1; 0 where no n-gram of a length was right.
    Raises:
        ShapeError, ValueError: Numbers of texts differ, or a text has no reference.
    Source: Papineni et al., BLEU, 2002, section 2.3.
    Example:
        >>> truth, text = "the cat is on the mat".split(), "the cat sat on the mat".split()
        >>> round(bleu([[truth]], [text], 2), 4)
        0.7071
    """
    _as_many("bleu", truth, predicted)
    right, all_of, length, wanted = np.zeros(n), np.zeros(n), 0, 0
    for i, (references, text) in enumerate(zip(truth, predicted, strict=True)):
        if not references or isinstance(references, str):
            raise ValueError(f"bleu: truth[{i}] is {references!r}, wanted a list of references")
        length += len(text)
        wanted += min((abs(len(r) - len(text)), len(r)) for r in references)[1]
        for k in range(1, n + 1):
            ours, most = _grams(text, k), Counter[Any]()
            for reference in references:
                most |= _grams(reference, k)
            right[k - 1] += (ours & most).total()
            all_of[k - 1] += ours.total()
    if not right.all():
        return 0.0
    penalty = min(1.0, float(np.exp(1 - wanted / length)))
    return penalty * float(np.exp(np.log(right / all_of).mean()))


def chrf(truth: Sequence[str], predicted: Sequence[str], n: int = 6, beta: float = 2.0) -> float:
    r"""chrF: the F score of n-grams of characters without spaces, recall weighing $\beta$ times.

    $$(1 + \beta^2) \frac{P R}{\beta^2 P + R}$$ of precision and recall, means over lengths 1 to n.

    Returns:
        0 to 1.
    Raises:
        ShapeError: Numbers of texts differ.
    Source: Popovic, chrF: character n-gram F-score for automatic MT evaluation, 2015.
    Example:
        >>> chrf(["abc"], ["abc"])
        1.0
    """
    _as_many("chrf", truth, predicted)
    counts = np.zeros((n, 3))  # right, predicted, true
    for reference, text in zip(truth, predicted, strict=True):
        a, b = ("".join(t.split()) for t in (text, reference))
        for k in range(n):
            ours, theirs = _grams(a, k + 1), _grams(b, k + 1)
            counts[k] += (ours & theirs).total(), ours.total(), theirs.total()
    counts = counts[(counts[:, 1] > 0) & (counts[:, 2] > 0)]
    if not len(counts) or not counts[0, 0]:
        return 0.0
    precision, recall = ((counts[:, 0] / counts[:, i]).mean() for i in (1, 2))
    return float((1 + beta**2) * precision * recall / (beta**2 * precision + recall))


def rouge_n(truth: Sequence[Tokens], predicted: Sequence[Tokens], n: int = 1) -> float:
    """ROUGE-N: the F1 score of the n-grams of each text, the mean over texts.

    Args:
        truth, predicted: Sequences of tokens, of one reference each.
    Source: Lin, ROUGE: A Package for Automatic Evaluation of Summaries, 2004, section 2.
    Example:
        >>> rouge_n(["the cat sat".split()], ["the cat".split()])
        0.8
    """
    _as_many("rouge_n", truth, predicted)
    scores = []
    for reference, text in zip(truth, predicted, strict=True):
        ours, theirs = _grams(text, n), _grams(reference, n)
        scores.append(_f1((ours & theirs).total(), ours.total(), theirs.total()))
    return float(np.mean(scores))


def rouge_l(truth: Sequence[Tokens], predicted: Sequence[Tokens]) -> float:
    """ROUGE-L: the F1 score of the longest common subsequence of each text, the mean over texts.

    Args and source as of rouge_n, section 3.

    Example:
        >>> rouge_l(["a b c d".split()], ["a c d e".split()])
        0.75
    """
    _as_many("rouge_l", truth, predicted)
    scores = []
    for reference, text in zip(truth, predicted, strict=True):
        row = [0] * (len(reference) + 1)
        for token in text:
            last = row
            row = [0]
            for j, other in enumerate(reference):
                row.append(last[j] + 1 if token == other else max(last[j + 1], row[j]))
        scores.append(_f1(row[-1], len(text), len(reference)))
    return float(np.mean(scores))


def perplexity(log_probabilities: Any) -> float:
    """The exponential of the mean negative natural logarithm of the probabilities of true tokens.

    Raises:
        ShapeError, ValueError: There are none, or one is above 0 or not finite.
    Example:
        >>> round(perplexity(np.log([0.5, 0.125])), 6)
        4.0
    """
    values = real("perplexity", "log_probabilities", log_probabilities)
    if values.max() > 0:
        raise ValueError(f"perplexity: there is {values.max():g}, wanted at most 0")
    return float(np.exp(-values.mean()))


def _as_many(where: str, truth: Any, predicted: Any) -> None:
    for name, texts in (("truth", truth), ("predicted", predicted)):
        if isinstance(texts, str):
            raise TypeError(f"{where}: {name} is one text, wanted a list")
    if len(truth) != len(predicted) or not len(truth):
        raise ShapeError(
            f"{where}: there are {len(truth)} true texts and {len(predicted)} predicted ones"
        )


def _error_rate(where: str, truth: Sequence[Tokens], predicted: Sequence[Tokens]) -> float:
    _as_many(where, truth, predicted)
    length = sum(map(len, truth))
    if not length:
        raise ValueError(f"{where}: all true texts are empty")
    return sum(map(edit_distance, truth, predicted)) / length


def _grams(tokens: Tokens, n: int) -> Counter[Any]:
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


def _f1(right: int, ours: int, theirs: int) -> float:
    return 2 * right / (ours + theirs) if ours and theirs else 0.0
