# SPDX-License-Identifier: Apache-2.0
"""Classes that were predicted, or scores of classes, against the true ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.core.arrays.spec import ShapeError
from nnl.metrics.checks import Array, alike, classes, real


def confusion_matrix(truth: Any, predicted: Any, num_classes: int | None = None) -> Array:
    r"""How often each class was taken for each: $C_{ij} = |\{n : t_n = i, p_n = j\}|$.

    Args:
        truth, predicted: Classes, integers of the same shape.
        num_classes: Rows and columns; None: as many as occur.
    Returns:
        (num_classes, num_classes), int64; a row for each true class.
    Raises:
        ShapeError, TypeError, ValueError: Shapes differ, or a class is not below num_classes.
    Example:
        >>> confusion_matrix([0, 1, 1], [0, 1, 0])
        array([[1, 0],
               [1, 1]])
    """
    where = "confusion_matrix"
    t, p = classes(where, "truth", truth), classes(where, "predicted", predicted)
    alike(where, ("truth", "predicted"), t, p)
    largest = int(max(t.max(), p.max()))
    n = largest + 1 if num_classes is None else num_classes
    if largest >= n:
        raise ValueError(f"{where}: there is the class {largest}, wanted less than {n}")
    return np.bincount(t.ravel() * n + p.ravel(), minlength=n * n).reshape(n, n)


def accuracy(truth: Any, scores: Any, k: int = 1) -> float:
    """The share of samples whose true class is among the k with the largest scores.

    Args:
        truth: (N,) integers.
        scores: (N, C); or (N,) integers, the predicted classes.
    Raises:
        ShapeError, ValueError: Shapes do not fit, or k is not in [1, C].
    Example:
        >>> accuracy([0, 1], [[0.9, 0.1], [0.8, 0.2]])
        0.5
    """
    t = classes("accuracy", "truth", truth)
    if np.ndim(scores) == 1:
        return float((classes("accuracy", "scores", scores, t.shape) == t).mean())
    s = real("accuracy", "scores", scores, 2)
    if t.shape != s.shape[:1]:
        raise ShapeError(f"accuracy: truth has the shape {t.shape}, scores {s.shape}")
    if t.max() >= s.shape[1] or not 1 <= k <= s.shape[1]:
        raise ValueError(
            f"accuracy: k is {k} and the largest class {t.max()}, scores have {s.shape[1]} classes"
        )
    own = s[np.arange(len(t)), t][:, None]
    # of equal scores, those of smaller classes stand first
    before = (s > own) | ((s == own) & (np.arange(s.shape[1]) < t[:, None]))
    return float((before.sum(1) < k).mean())


def precision_recall_f1(
    truth: Any, predicted: Any, average: str | None = "macro", num_classes: int | None = None
) -> tuple[Any, Any, Any]:
    r"""Precision, recall and their harmonic mean.

    $$P = \frac{TP}{TP + FP},\quad R = \frac{TP}{TP + FN},\quad F_1 = \frac{2 P R}{P + R}$$
    and 0 where a denominator is.

    Args:
        truth, predicted: Classes, integers of the same shape.
        average: "macro", the mean over classes that occur; "weighted", by the number of true
            samples; "micro", of all counts together; None: an array of all classes each.
        num_classes: As of confusion_matrix.
    Raises:
        ShapeError, TypeError, ValueError: As of confusion_matrix, or average is none of these.
    Example:
        >>> precision_recall_f1([0, 1, 1], [0, 1, 0], None)
        (array([0.5, 1. ]), array([1. , 0.5]), array([0.6667, 0.6667]))
    """
    if average not in ("macro", "weighted", "micro", None):
        raise ValueError(
            f"precision_recall_f1: average is {average!r}, wanted macro, weighted, micro or None"
        )
    matrix = confusion_matrix(truth, predicted, num_classes)
    right, guessed, true = np.diag(matrix), matrix.sum(0), matrix.sum(1)
    if average == "micro":
        right, guessed, true = right.sum(), guessed.sum(), true.sum()
    found = (_share(right, guessed), _share(right, true), _share(2 * right, guessed + true))
    if average is None:
        return found
    if average == "micro":
        p, r, f = (float(v) for v in found)
        return p, r, f
    weights = true if average == "weighted" else (guessed + true > 0)
    p, r, f = (float(np.average(v, weights=weights)) for v in found)
    return p, r, f


def roc_auc(truth: Any, scores: Any) -> float:
    """The area under the ROC curve: how likely a positive has a larger score than a negative.

    Args:
        truth: (N,), classes.
        scores: (N,) for classes 0 and 1; or (N, C), where the mean over the classes is taken, each
            against the rest.
    Raises:
        ShapeError, ValueError: Shapes do not fit, or a class has no or only positives.
    Source: Fawcett, An Introduction to ROC Analysis, 2006.
    Example:
        >>> roc_auc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])
        0.75
    """
    t, s = _binary_or_many("roc_auc", truth, scores)
    areas = []
    for c in range(s.shape[1]):
        positive = t[:, c]
        n = positive.sum()
        if not 0 < n < len(t):
            raise ValueError(f"roc_auc: {n} of {len(t)} samples are positive, wanted some of both")
        _, place, count = np.unique(s[:, c], return_inverse=True, return_counts=True)
        rank = (np.cumsum(count) - (count - 1) / 2)[place]  # the mean of equal ones
        areas.append((rank[positive].sum() - n * (n + 1) / 2) / (n * (len(t) - n)))
    return float(np.mean(areas))


def average_precision(truth: Any, scores: Any) -> float:
    r"""The area under precision over recall, as a sum of steps: $\sum_n (R_n - R_{n-1}) P_n$.

    Args and errors as of roc_auc.

    Example:
        >>> round(average_precision([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]), 4)
        0.8333
    """
    t, s = _binary_or_many("average_precision", truth, scores)
    areas = []
    for c in range(s.shape[1]):
        order = np.argsort(-s[:, c], kind="stable")
        right = np.cumsum(t[order, c])
        if not right[-1]:
            raise ValueError("average_precision: no sample is positive")
        ends = np.flatnonzero(np.append(np.diff(s[order, c]) != 0, True))  # of equal scores
        right = right[ends]
        areas.append((np.diff(right, prepend=0) / right[-1] * right / (ends + 1)).sum())
    return float(np.mean(areas))


def matthews_correlation(truth: Any, predicted: Any) -> float:
    """The correlation of classes, in [-1, 1]; 0 where one side has a single class.

    Source: Gorodkin, Comparing two K-category assignments by a K-category correlation coefficient,
    2004, equation 2.
    Example:
        >>> round(matthews_correlation([1, 1, 1, 0], [1, 0, 1, 1]), 4)
        -0.3333
    """
    matrix = confusion_matrix(truth, predicted).astype(np.float64)
    true, guessed, n = matrix.sum(1), matrix.sum(0), matrix.sum()
    together = np.trace(matrix) * n - true @ guessed
    spread = np.sqrt((n * n - guessed @ guessed) * (n * n - true @ true))
    return float(together / spread) if spread else 0.0


def cohen_kappa(truth: Any, predicted: Any) -> float:
    r"""Agreement beyond that of chance, $\kappa = (p_o - p_e) / (1 - p_e)$.

    Returns:
        In [-1, 1]; NaN where chance agrees always: both sides have the same single class.
    Source: Cohen, A coefficient of agreement for nominal scales, 1960.
    Example:
        >>> cohen_kappa([0, 0, 1, 1], [0, 1, 1, 1])
        0.5
    """
    matrix = confusion_matrix(truth, predicted) / np.size(truth)
    chance = matrix.sum(1) @ matrix.sum(0)
    return float((np.trace(matrix) - chance) / (1 - chance)) if chance < 1 else float("nan")


def calibration_error(truth: Any, probabilities: Any, bins: int = 15) -> float:
    """How far confidence and accuracy are apart, the mean over bins of equal width.

    Args:
        truth: (N,) classes.
        probabilities: (N, C), rows sum to 1.
    Raises:
        ShapeError, ValueError: Shapes do not fit, or rows are no probabilities.
    Source: Guo et al., On Calibration of Modern Neural Networks, arXiv:1706.04599, equation 3.
    Example:
        >>> round(calibration_error([0, 1], [[0.8, 0.2], [0.3, 0.7]]), 4)
        0.25
    """
    t, p = classes("calibration_error", "truth", truth), np.asarray(probabilities)
    real("calibration_error", "probabilities", p, 2)
    if len(t) != len(p):
        raise ShapeError(f"calibration_error: truth has {len(t)} samples, probabilities {len(p)}")
    if p.min() < 0 or np.abs(p.sum(1) - 1).max() > 1e-3:
        raise ValueError("calibration_error: rows of probabilities do not sum to 1")
    confidence, right = p.max(1), p.argmax(1) == t
    edges = np.linspace(0, 1, bins + 1, dtype=p.dtype)
    place = np.clip(np.searchsorted(edges, confidence, "left") - 1, 0, bins - 1)
    gaps = np.bincount(place, right - confidence.astype(np.float64), bins)
    return float(np.abs(gaps).sum() / len(t))


def _share(part: Array, whole: Array) -> Array:
    return np.divide(part, whole, out=np.zeros(np.shape(part)), where=np.asarray(whole) > 0)


def _binary_or_many(where: str, truth: Any, scores: Any) -> tuple[Array, Array]:
    """Whether each sample has each class, and scores of it: two arrays (N, C)."""
    t, s = classes(where, "truth", truth), real(where, "scores", scores)
    if t.ndim != 1 or s.shape[:1] != t.shape or s.ndim > 2:
        raise ShapeError(f"{where}: truth has the shape {t.shape}, scores {s.shape}")
    largest = 1 if s.ndim == 1 else s.shape[1] - 1
    if t.max() > largest:
        raise ValueError(f"{where}: there is the class {t.max()}, wanted at most {largest}")
    if s.ndim == 1:
        return (t == 1)[:, None], s[:, None]
    return t[:, None] == np.arange(s.shape[1]), s
