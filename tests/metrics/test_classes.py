# SPDX-License-Identifier: Apache-2.0
"""Measures of classes, segments and boxes against scikit-learn, torchmetrics and pycocotools."""

import contextlib
import io

import numpy as np
import pytest

from nnl import metrics as M
from nnl.core.arrays.spec import ShapeError

rng = np.random.default_rng(0)
TRUTH, GUESS = rng.integers(0, 4, 200), rng.integers(0, 5, 200)
SCORES = rng.normal(size=(200, 4)).round(1) + np.eye(4)[TRUTH]  # some are equal


def test_classification_measures_are_those_of_scikit_learn():
    sk = pytest.importorskip("sklearn.metrics")
    np.testing.assert_array_equal(
        M.confusion_matrix(TRUTH, GUESS), sk.confusion_matrix(TRUTH, GUESS)
    )
    for average in ("macro", "weighted", "micro", None):
        want = sk.precision_recall_fscore_support(TRUTH, GUESS, average=average, zero_division=0)
        for ours, theirs in zip(
            M.precision_recall_f1(TRUTH, GUESS, average), want[:3], strict=True
        ):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    assert M.accuracy(TRUTH, GUESS) == sk.accuracy_score(TRUTH, GUESS)
    distinct = SCORES + rng.normal(size=SCORES.shape) * 1e-3
    for k in (1, 2, 3):
        want = sk.top_k_accuracy_score(TRUTH, distinct, k=k)
        assert M.accuracy(TRUTH, distinct, k) == pytest.approx(want)
    assert M.matthews_correlation(TRUTH, GUESS) == pytest.approx(sk.matthews_corrcoef(TRUTH, GUESS))
    assert M.cohen_kappa(TRUTH, GUESS) == pytest.approx(sk.cohen_kappa_score(TRUTH, GUESS))
    two = TRUTH % 2
    assert M.roc_auc(two, SCORES[:, 1]) == pytest.approx(sk.roc_auc_score(two, SCORES[:, 1]))
    shares = np.exp(SCORES) / np.exp(SCORES).sum(1, keepdims=True)
    want = sk.roc_auc_score(TRUTH, shares, multi_class="ovr")
    assert M.roc_auc(TRUTH, shares) == pytest.approx(want)
    want = sk.average_precision_score(two, SCORES[:, 1])
    assert M.average_precision(two, SCORES[:, 1]) == pytest.approx(want)
    want = sk.average_precision_score(np.eye(4)[TRUTH], SCORES)
    assert M.average_precision(TRUTH, SCORES) == pytest.approx(want)


def test_calibration_and_segments_are_those_of_torchmetrics():
    tm = pytest.importorskip("torchmetrics.functional")
    import torch
    from torchmetrics.functional.detection import panoptic_quality
    from torchmetrics.functional.segmentation import dice_score, mean_iou

    shares = np.exp(SCORES) / np.exp(SCORES).sum(1, keepdims=True)
    given = torch.tensor(shares), torch.tensor(TRUTH)
    want = tm.calibration_error(*given, task="multiclass", num_classes=4, n_bins=15, norm="l1")
    assert M.calibration_error(TRUTH, shares) == pytest.approx(float(want), abs=1e-6)
    maps = rng.integers(0, 3, (2, 6, 16, 16))
    found = M.segmentation_scores(*maps)
    for key, kind in (("iou", mean_iou), ("dice", dice_score)):
        extra = {"average": "none"} if key == "dice" else {"per_class": True}
        whole = torch.tensor(maps.reshape(2, 1, -1))  # one image of all pixels
        want = kind(whole[1], whole[0], num_classes=3, input_format="index", **extra)
        np.testing.assert_allclose(found[key], want.numpy()[0], rtol=1e-5)
    blocks = rng.integers(0, 2, (2, 8, 8, 2)).repeat(4, 1).repeat(4, 2)
    blocks[1, :12] = blocks[0, :12]
    t, p = torch.tensor(blocks[:, None])
    want = panoptic_quality(p, t, things={0, 1}, stuffs=set(), return_sq_and_rq=True)
    found = M.panoptic_quality(*blocks)
    np.testing.assert_allclose(
        [found["pq"], found["sq"], found["rq"]], want.numpy().ravel(), rtol=1e-6
    )


def test_pixels_that_are_to_be_ignored_count_nothing():
    found = M.segmentation_scores([0, 1, 255, 255], [0, 1, 0, 1], ignore=255)
    assert found["mean_iou"] == found["accuracy"] == found["mean_accuracy"] == 1


def scenes(kind):
    """Objects of all sizes, crowds and near misses of them, for 12 images."""
    draw = np.random.default_rng(3)
    truth, predicted = [], []
    for _ in range(12):
        n = draw.integers(0, 7)
        begin = draw.uniform(0, 120, (n, 2))
        boxes = np.hstack([begin, begin + draw.uniform(4, 120, (n, 2))]).round()
        classes = draw.integers(0, 3, n)
        more = np.repeat(np.arange(n), draw.integers(0, 3, n))
        moved = (boxes[more] + draw.normal(scale=4, size=(len(more), 4))).round()
        moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
        moved = moved.clip(0, 240)
        t = {"boxes": boxes, "classes": classes, "crowd": draw.random(n) < 0.2}
        p = {"boxes": moved, "classes": classes[more], "scores": draw.random(len(more)).round(2)}
        if len(more):
            p["classes"][0] = 2
        for one in (t, p) if kind == "segm" else ():
            grid = np.arange(240)
            left, top, right, below = (one["boxes"].T[i][:, None] for i in range(4))
            across, down = ((grid >= a) & (grid < b) for a, b in ((left, right), (top, below)))
            one["masks"] = down[:, :, None] & across[:, None] & (grid % 3 > 0)
            del one["boxes"]
        truth.append(t)
        predicted.append(p)
    return truth, predicted


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_average_precision_of_detections_is_that_of_pycocotools(kind):
    coco = pytest.importorskip("pycocotools.coco")
    from pycocotools import mask
    from pycocotools.cocoeval import COCOeval

    truth, predicted = scenes(kind)

    def annotations(images):
        for i, image in enumerate(images):
            for j in range(len(image["classes"])):
                one = {"image_id": i, "category_id": int(image["classes"][j])}
                if kind == "bbox":
                    a, b, c, d = map(float, image["boxes"][j])
                    one |= {"bbox": [a, b, c - a, d - b], "area": (c - a) * (d - b)}
                else:
                    one["segmentation"] = mask.encode(
                        np.asfortranarray(image["masks"][j].astype(np.uint8))
                    )
                    one["area"] = float(image["masks"][j].sum())
                if "scores" in image:
                    one["score"] = float(image["scores"][j])
                else:
                    one["iscrowd"] = int(image["crowd"][j])
                yield one

    with contextlib.redirect_stdout(io.StringIO()):
        theirs = coco.COCO()
        theirs.dataset = {
            "info": {},
            "images": [{"id": i, "height": 240, "width": 240} for i in range(12)],
            "categories": [{"id": i} for i in range(3)],
            "annotations": [{**a, "id": k} for k, a in enumerate(annotations(truth), 1)],
        }
        theirs.createIndex()
        done = COCOeval(theirs, theirs.loadRes(list(annotations(predicted))), kind)
        done.evaluate()
        done.accumulate()
        done.summarize()
    ours = M.coco_average_precision(truth, predicted)
    classes = ours.pop("classes")
    np.testing.assert_allclose(list(ours.values()), done.stats, rtol=1e-10)
    assert 0.1 < ours["AP"] < 0.9 and ours["APsmall"] != ours["APlarge"]
    assert np.mean(list(classes.values())) == pytest.approx(ours["AP"])


def test_nothing_to_find_and_nothing_found():
    empty = {"boxes": [], "classes": [], "scores": []}
    full = {"boxes": [[0, 0, 5, 5]], "classes": [1], "scores": [0.5]}
    assert M.coco_average_precision([empty], [full])["AP"] == -1
    assert M.coco_average_precision([full], [empty])["AP"] == 0


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: M.accuracy([0, 1], [[1.0, 2]] * 3), ShapeError, r"truth has the shape \(2,\)"),
        (lambda: M.accuracy([0], [[1.0, 2]], 3), ValueError, "accuracy: k is 3 and the largest"),
        (lambda: M.accuracy([0], [[np.nan, 2]]), ValueError, "scores has numbers that are not fin"),
        (lambda: M.confusion_matrix([0.5], [1]), TypeError, "truth has the type float64, wanted"),
        (lambda: M.confusion_matrix([0, 1], [1]), ShapeError, r"predicted \(1,\): wanted the same"),
        (lambda: M.confusion_matrix([3], [1], 3), ValueError, "class 3, wanted less than 3"),
        (lambda: M.confusion_matrix([], []), TypeError, "truth has the type float64"),
        (lambda: M.confusion_matrix([-1], [0]), ValueError, "truth has the class -1, wanted at"),
        (lambda: M.precision_recall_f1([0], [0], "all"), ValueError, "average is 'all', wanted"),
        (lambda: M.roc_auc([1, 1], [0.1, 0.2]), ValueError, "2 of 2 samples are positive"),
        (lambda: M.roc_auc([2], [0.1]), ValueError, "roc_auc: there is the class 2, wanted at"),
        (lambda: M.average_precision([0], [0.1]), ValueError, "no sample is positive"),
        (lambda: M.calibration_error([0], [[2.0, 3]]), ValueError, "do not sum to 1"),
        (lambda: M.segmentation_scores([5], [5], ignore=5), ValueError, "every pixel has the cla"),
        (lambda: M.box_iou([[0, 0, 1]], [[0, 0, 1, 1]]), ShapeError, r"a has the shape \(1, 3\)"),
        (lambda: M.box_iou([[3, 0, 1, 1]], []), ValueError, "a box that ends before it begins"),
        (lambda: M.coco_average_precision([], [{}]), ShapeError, "truth has 0 images, predicted 1"),
        (lambda: M.coco_average_precision([{}], [{}]), ValueError, r"truth\[0\] has , wanted"),
        (
            lambda: M.coco_average_precision(
                [{"boxes": [[0, 0, 1, 1]], "classes": [0]}], [{"boxes": [], "classes": []}]
            ),
            ValueError,
            r"predicted\[0\] has no 'scores'",
        ),
        (
            lambda: M.coco_average_precision(
                [{"boxes": [[0, 0, 1, 1]], "classes": [0, 1]}],
                [{"boxes": [], "classes": [], "scores": []}],
            ),
            ShapeError,
            r"truth\[0\] has 1 objects and 2 of 'classes'",
        ),
    ],
)
def test_bad_arguments_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call()
