# SPDX-License-Identifier: Apache-2.0
"""Non-maximum suppression: worked examples, and what it refuses."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F

V = nn.Variable.from_numpy_array
DETECTIONS = np.array(
    [[
        [0.5, 0.5, 0.4, 0.4, 0.9, 0.8, 0.1],
        [0.52, 0.5, 0.4, 0.4, 0.8, 0.9, 0.95],
        [0.1, 0.1, 0.1, 0.1, 0.4, 0.9, 0.9],
        [0.5, 0.5, 0.4, 0.4, 0.7, 0.1, 0.6],
    ]]
)  # fmt: skip


@pytest.mark.parametrize(
    "at,want",
    [
        ({}, [[0.9, 0.72, 0], [0.8, 0, 0.76], [0, 0, 0], [0.7, 0, 0]]),
        ({"nms": 0.99}, [[0.9, 0.72, 0], [0.8, 0.72, 0.76], [0, 0, 0], [0.7, 0, 0]]),
        ({"nms_per_class": False}, [[0.9, 0.72, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]),
    ],
)
def test_nms_detection2d_keeps_the_box_with_the_highest_score(at, want):
    with nn.auto_forward():
        y = F.nms_detection2d(V(DETECTIONS), **at).d
    np.testing.assert_allclose(y[0, :, 4:], want, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(y[..., :4], DETECTIONS[..., :4].astype(np.float32))


@pytest.mark.parametrize("per_class,want", [(True, [0.855, 0, 0.63]), (False, [0.855, 0, 0])])
def test_a_suppressed_box_suppresses_only_without_classes(per_class, want):
    # the second overlaps both others, which do not overlap
    x = [[0.3, 0.9, 0.95], [0.4, 0.8, 0.9], [0.5, 0.7, 0.9]]
    x = np.array([[[c, 0.5, 0.4, 0.4, *rest] for c, *rest in x]])
    with nn.auto_forward():
        y = F.nms_detection2d(V(x), nms_per_class=per_class).d
    np.testing.assert_allclose(y[0, :, 5], want, rtol=1e-6)


# the example of ONNX's test suite: three groups of boxes, the last with one
BOXES = np.array(
    [[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11], [0, 10.1, 1, 11.1],
      [0, 100, 1, 101]]]
)  # fmt: skip
SCORES = np.array([[[0.9, 0.75, 0.6, 0.95, 0.5, 0.3]]])


@pytest.mark.parametrize(
    "limit,threshold,want",
    [(3, 0.0, [3, 0, 5]), (2, 0.0, [3, 0]), (3, 0.4, [3, 0]), (0, 0.0, []), (3, 2.0, [])],
)
def test_onnx_non_max_suppression_gives_rows_of_image_class_and_box(limit, threshold, want):
    at = {"max_output_boxes_per_class": limit, "iou_threshold": 0.5, "score_threshold": threshold}
    with nn.auto_forward():
        y = F.onnx_non_max_suppression(V(BOXES), V(SCORES), **at)
        flipped = F.onnx_non_max_suppression(V(BOXES[..., [2, 3, 0, 1]]), V(SCORES), **at)
        center = np.concatenate(
            ((BOXES[..., :2] + BOXES[..., 2:]) / 2, BOXES[..., 2:] - BOXES[..., :2]), -1
        )
        centered = F.onnx_non_max_suppression(V(center), V(SCORES), center_point_box=1, **at)
    assert y.d.tolist() == flipped.d.tolist() == centered.d.tolist() == [[0, 0, i] for i in want]
    assert y.d.dtype == np.uint64


def test_of_equal_scores_the_first_box_stays():
    with nn.auto_forward():
        y = F.onnx_non_max_suppression(
            V(BOXES[:, :3]), V(np.ones((1, 1, 3))), max_output_boxes_per_class=3, iou_threshold=0.5
        )
    assert y.d.tolist() == [[0, 0, 0]]


def test_a_static_graph_refuses_another_number_of_boxes():
    boxes, scores = V(BOXES), V(SCORES)
    y = F.onnx_non_max_suppression(boxes, scores, 0, 3, 0.5, 0.0)
    y.forward()
    scores.d = -scores.d
    with pytest.raises(ValueError, match="0 boxes stay, the call was made for 3; make it again"):
        y.forward()


@pytest.mark.parametrize(
    "f,shapes,at,text",
    [
        ("nms_detection2d", [(4, 7)], {}, "x .* has rank 2, wanted 3"),
        ("nms_detection2d", [(1, 4, 5)], {}, "has 5 values per box, wanted 5 and at least one"),
        ("onnx_non_max_suppression", [(4, 4), (1, 1, 4)], {}, "boxes .* has rank 2, wanted 3"),
        ("onnx_non_max_suppression", [(1, 4, 4), (4, 4)], {}, "scores .* has rank 2, wanted 3"),
        ("onnx_non_max_suppression", [(1, 4, 3), (1, 1, 4)], {}, r"shapes \(B, N, 4\) and"),
        (
            "onnx_non_max_suppression",
            [(1, 4, 4), (1, 1, 4)],
            {"center_point_box": 2},
            "center_point_box is 2, wanted 0 or 1",
        ),
    ],
)
def test_errors_name_what_came_and_what_was_wanted(f, shapes, at, text):
    with pytest.raises(ValueError, match=f"^{f}: .*{text}"):
        getattr(F, f)(*(V(np.zeros(s)) for s in shapes), **at)
