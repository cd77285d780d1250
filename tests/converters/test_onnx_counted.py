# SPDX-License-Identifier: Apache-2.0
"""Results of ONNX files of which values say how many rows there are, in programs."""

import numpy as np
import pytest

from nnl.cli.main import main

onnx = pytest.importorskip("onnx")
from onnx import TensorProto  # noqa: E402

from tests.converters.onnx_nodes import node  # noqa: E402
from tests.converters.test_onnx_open_loops import INT, check, saved  # noqa: E402

BOOL = TensorProto.BOOL


def inputs(*shapes, more=None):
    """Values of which about a half are positive; none and all of them, too."""
    found = []
    for k, shape in enumerate(shapes):
        x = np.random.default_rng(k).normal(size=shape).astype(np.float32)
        found.append({"x": x if k < len(shapes) - 2 else np.abs(x) * (1 if k % 2 else -1)})
        found[-1] |= {} if more is None else more(k, shape)
    return found


SHAPES = [(3, 4), (1, 3), (5, 2), (8, 4), (2, 3), (4, 4)]
POSITIVE = [node("Greater", "x,zero", "p"), node("NonZero", "p", "at")]
NUMBERS = {"zero": np.float32(0), "one": [1], "none": 0}


@pytest.mark.parametrize(
    "nodes,outputs",
    [
        ([], [("at", (2, None), INT)]),
        (
            [
                node("Transpose", "at", "rows"),
                node("GatherND", "x,rows", "v"),
                node("Exp", "v", "y"),
                node("ReduceSum", "v,axis", "total", keepdims=0),
            ],
            [("rows", (None, 2), INT), ("y", (None,)), ("total", ())],
        ),
        (
            [
                node("Transpose", "at", "rows"),
                node("GatherND", "x,rows", "v"),
                node("Mul", "v,v", "squares"),
                node("ScatterND", "x,rows,squares", "y"),
            ],
            [("y", (None, None))],
        ),
        (
            [
                node("Gather", "at,none", "row", axis=0),
                node("Slice", "row,one,three,axis", "some"),
                node("Gather", "x,some", "v", axis=0),
                node("Softmax", "v", "y", axis=1),
                node("Unsqueeze", "y,one", "z"),
                node("Reshape", "some,flat", "column"),
            ],
            [("some", (None,), INT), ("z", (None, 1, None)), ("column", (None, 1), INT)],
        ),
    ],
)
def test_where_elements_are_not_zero(nodes, outputs, tmp_path):
    numbers = {**NUMBERS, "axis": [0], "three": [3], "flat": [-1, 1]}
    saved(tmp_path / "a.onnx", [*POSITIVE, *nodes], [("x", ("N", "M"))], outputs, numbers)
    check(tmp_path / "a.onnx", inputs(*SHAPES))


def test_rows_that_a_mask_chooses(tmp_path):
    nodes = [
        node("ReduceSum", "x,axis", "sums", keepdims=0),
        node("Greater", "sums,zero", "p"),
        node("Compress", "x,p", "rows", axis=0),
        node("MatMul", "rows,w", "y"),
        node("Add", "y,b", "z"),
        node("ReduceMean", "z,first", "mean", keepdims=1),
        node("ReduceMax", "z,first", "max", keepdims=0),
        node("ReduceMin", "z,axis", "min", keepdims=0),
    ]
    numbers = {
        **NUMBERS,
        "axis": [1],
        "first": [0],
        "w": np.float32(np.eye(4)),
        "b": np.float32([1, 2, 3, 4]),
    }
    ends = [("z", (None, 4)), ("mean", (1, 4)), ("max", (4,)), ("min", (None,))]
    saved(tmp_path / "a.onnx", nodes, [("x", ("N", 4))], ends, numbers)
    values = inputs((3, 4), (7, 4), (5, 4), (2, 4), (3, 4))
    check(tmp_path / "a.onnx", [v for v in values if (v["x"].sum(1) > 0).any()])


@pytest.mark.parametrize("in_order", [0, 1])
def test_distinct_elements(in_order, tmp_path):
    nodes = [node("Round", "x", "r"), node("Unique", "r", "y,first,back,count", sorted=in_order)]
    ends = [("y", (None,)), *[(k, (None,), INT) for k in ("first", "back", "count")]]
    saved(tmp_path / "a.onnx", nodes, [("x", ("N", "M"))], ends)
    check(tmp_path / "a.onnx", inputs(*SHAPES))


@pytest.mark.parametrize("axis,in_order", [(0, 0), (-1, 1)])
def test_distinct_slices(axis, in_order, tmp_path):
    ends = [("y", (None, None)), *[(k, (None,), INT) for k in ("first", "back", "count")]]
    unique = node("Unique", "r", ",".join(k for k, *_ in ends), axis=axis, sorted=in_order)
    nodes = [node("Sign", "x", "s"), node("Max", "s,zero", "r"), unique]
    saved(tmp_path / "a.onnx", nodes, [("x", ("N", "M"))], ends, {"zero": np.float32(0)})
    check(tmp_path / "a.onnx", inputs(*SHAPES))


def test_as_many_of_the_largest_as_a_value_says(tmp_path):
    nodes = [node("TopK", "x,k", "y,at", axis=1)]
    ends = [("y", (None, None)), ("at", (None, None), INT)]
    saved(tmp_path / "a.onnx", nodes, [("x", ("N", "M")), ("k", (1,), INT)], ends)
    more = [1, 1, 2, 3, 0, 4]
    values = inputs(*SHAPES, more=lambda k, shape: {"k": np.array([more[k]])})
    program = check(tmp_path / "a.onnx", values)
    with pytest.raises(ValueError, match="at_most: count holds 5, wanted 0 to 4"):
        program.run(x=np.zeros((2, 4), np.float32), k=np.array([5]))


@pytest.mark.parametrize("centres", [0, 1])
def test_boxes_that_overlap_no_better_one(centres, tmp_path):
    """A detector's end: rows (image, class, box), then boxes and scores of these."""
    nodes = [
        node("Gather", "x,four", "boxes", axis=2),
        node("Gather", "x,rest", "by_box", axis=2),
        node("Transpose", "by_box", "scores", perm=[0, 2, 1]),
        node(
            "NonMaxSuppression", "boxes,scores,most,overlap,least", "rows",
            center_point_box=centres,
        ),
        node("GatherND", "scores,rows", "s"),
        node("Gather", "rows,ends", "two", axis=1),
        node("GatherND", "boxes,two", "b"),
    ]  # fmt: skip
    numbers = {
        "four": [0, 1, 2, 3], "rest": [4, 5], "most": [3], "ends": [0, 2],
        "overlap": np.float32([0.3]), "least": np.float32([0.2]),
    }  # fmt: skip
    ends = [("rows", (None, 3), INT), ("s", (None,)), ("b", (None, 4))]
    saved(tmp_path / "a.onnx", nodes, [("x", ("N", "M", 6))], ends, numbers)
    rng = np.random.default_rng(0)
    check(
        tmp_path / "a.onnx",
        [
            {"x": rng.uniform(size=s).astype(np.float32)}
            for s in ((1, 20, 6), (2, 7, 6), (1, 1, 6), (3, 40, 6))
        ],
    )


def test_what_needs_the_number_is_named(tmp_path, capsys):
    nodes = [*POSITIVE, node("Shape", "at", "y")]
    saved(tmp_path / "a.onnx", nodes, [("x", ("N", "M"))], [("y", (2,), INT)], NUMBERS)
    assert main(["convert", str(tmp_path / "a.onnx"), str(tmp_path / "a.nnlp")]) == 1
    assert "node Shape 'y': needs to know how many entries there are" in capsys.readouterr().err
    saved(tmp_path / "a.onnx", POSITIVE, [("x", (2, 3))], [("at", (2, None), INT)], NUMBERS)
    assert main(["convert", str(tmp_path / "a.onnx"), str(tmp_path / "a.tflite")]) == 1
    assert "node NonZero 'at': needs the number in x" in capsys.readouterr().err
    program = str(tmp_path / "a.nnlp")
    assert main(["convert", "--verify", str(tmp_path / "a.onnx"), program]) == 0
