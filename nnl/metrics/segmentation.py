# SPDX-License-Identifier: Apache-2.0
"""Classes of pixels, and segments."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.metrics.checks import Array, alike, classes
from nnl.metrics.classification import confusion_matrix


def segmentation_scores(
    truth: Any, predicted: Any, num_classes: int | None = None, ignore: int | None = None
) -> dict[str, Any]:
    r"""Overlap of classes of pixels: $IoU = |T \cap P| / |T \cup P|$ and
    $Dice = 2 |T \cap P| / (|T| + |P|)$.

    Args:
        truth, predicted: Classes, integers of the same shape.
        num_classes: As of confusion_matrix.
        ignore: Pixels whose true class is this are left out, 255 for example.
    Returns:
        iou, dice: (num_classes,), NaN for classes that nobody has. mean_iou, mean_dice: of the
        others. accuracy: the share of pixels that are right; mean_accuracy: of the pixels of each
        class that is there.
    Raises:
        ShapeError, TypeError, ValueError: As of confusion_matrix, or no pixel is left.
    Example:
        >>> segmentation_scores([[0, 0], [1, 1]], [[0, 1], [1, 1]])["iou"]
        array([0.5   , 0.6667])
    """
    where = "segmentation_scores"
    t, p = classes(where, "truth", truth), classes(where, "predicted", predicted)
    alike(where, ("truth", "predicted"), t, p)
    if ignore is not None:
        t, p = t[t != ignore], p[t != ignore]
        if not t.size:
            raise ValueError(f"{where}: every pixel has the class {ignore}, which is left out")
    matrix = confusion_matrix(t, p, num_classes)
    right, true, guessed = np.diag(matrix), matrix.sum(1), matrix.sum(0)
    with np.errstate(invalid="ignore"):
        iou, dice = right / (true + guessed - right), 2 * right / (true + guessed)
        recall = right / true
    return {
        "iou": iou,
        "dice": dice,
        "mean_iou": float(np.nanmean(iou)),
        "mean_dice": float(np.nanmean(dice)),
        "accuracy": float(right.sum() / matrix.sum()),
        "mean_accuracy": float(np.nanmean(recall)),
    }


def panoptic_quality(truth: Any, predicted: Any) -> dict[str, float]:
    r"""Segments that were found and how well: $PQ = \sum_{TP} IoU / (TP + FP / 2 + FN / 2)$.

    A pair of segments of one class is found (TP) where their IoU is above 0.5.

    Args:
        truth, predicted: (..., 2) integers: class and number of the segment of each pixel.
    Returns:
        panoptic, segmentation and recognition quality (pq, sq, rq): means over the classes.
    Source: Kirillov et al., Panoptic Segmentation, arXiv:1801.00868, equation 1.
    Example:
        >>> truth = np.array([[0, 0], [0, 0], [1, 0], [1, 1]])
        >>> panoptic_quality(truth, truth)["pq"]
        1.0
    """
    where = "panoptic_quality"
    t, p = classes(where, "truth", truth), classes(where, "predicted", predicted)
    alike(where, ("truth", "predicted"), t, p)
    ours, guesses = _segments(t), _segments(p)
    pairs, counts = np.unique(np.stack([ours[1], guesses[1]]), axis=1, return_counts=True)
    area, area_of_guess = np.bincount(ours[1]), np.bincount(guesses[1])
    i, j = pairs
    iou = counts / (area[i] + area_of_guess[j] - counts)
    found = (ours[0][i, 0] == guesses[0][j, 0]) & (iou > 0.5)
    pq, sq, rq = [], [], []
    for c in np.union1d(ours[0][:, 0], guesses[0][:, 0]):
        hits = iou[found & (ours[0][i, 0] == c)]
        whole = ((ours[0][:, 0] == c).sum() + (guesses[0][:, 0] == c).sum()) / 2
        pq.append(hits.sum() / whole)
        sq.append(hits.mean() if len(hits) else 0.0)
        rq.append(len(hits) / whole)
    return {"pq": float(np.mean(pq)), "sq": float(np.mean(sq)), "rq": float(np.mean(rq))}


def _segments(labels: Array) -> tuple[Array, Array]:
    """(class, number) of each segment, and the segment of each pixel."""
    found, place = np.unique(labels.reshape(-1, 2), axis=0, return_inverse=True)
    return found, place.ravel()
