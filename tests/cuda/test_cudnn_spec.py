# SPDX-License-Identifier: Apache-2.0
"""What a graph for cuDNN may look like, and what it says where it does not fit."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nnl.ext.cuda.cudnn.spec import (
    FIRST,
    Array,
    Copy,
    Draft,
    Graph,
    Node,
    SpecError,
    Work,
    channels_last,
    place,
    rows,
)
from tests.cuda.evaluate import evaluate

WINDOW = {"pre_padding": (0, 0), "post_padding": (0, 0), "stride": (1, 1), "dilation": (1, 1)}


def graph_of(op: str, ins: dict[str, Any], outs: dict[str, Any], **attrs: Any) -> Graph:
    """One operation on arrays of these sizes; numbers are constants."""
    draft = Draft()
    made = {}
    for i, (port, dim) in enumerate(ins.items()):
        if isinstance(dim, float):
            made[port] = draft.constant(dim, 4)
        else:
            made[port] = draft.array("in", i, dim, rows(dim), "float32")
    results = {
        port: draft.array("out", o, dim, rows(dim), "float32")
        for o, (port, dim) in enumerate(outs.items())
    }
    draft.node(op, made, results, **attrs)
    return draft.graph()


X, W, Y = (2, 6, 5, 5), (8, 3, 2, 2), (2, 8, 4, 4)
V, R = (1, 6, 1, 1), (2, 1, 1, 1)
CONV = {"image": X, "weight": W}
BATCH = {"input": X, "scale": V, "bias": V, "epsilon": 1e-3, "momentum": 0.1}
LAYER = {"input": X, "scale": (1, *X[1:]), "bias": (1, *X[1:]), "epsilon": 1e-3}
Q = (2, 4, 5, 8)
SDPA = {"attn_scale": 1.0, "causal": None, "corner": "TOP_LEFT"}


def test_convolutions_that_fit_are_valid() -> None:
    graph_of("conv_fprop", CONV, {"Y": Y}, **WINDOW).validate()
    graph_of("conv_dgrad", {"loss": Y, "filter": W}, {"DX": X}, **WINDOW).validate()
    graph_of("conv_wgrad", {"image": X, "loss": Y}, {"DW": W}, **WINDOW).validate()


@pytest.mark.parametrize(
    ("graph", "text"),
    [
        (
            graph_of("conv_fprop", {"image": X, "weight": (8, 4, 2, 2)}, {"Y": Y}, **WINDOW),
            "conv_fprop: image float32[2, 6, 5, 5] has 6 channels, not a multiple of the 4 of "
            "weight float32[8, 4, 2, 2]",
        ),
        (
            graph_of("conv_fprop", {"image": X, "weight": (9, 3, 2, 2)}, {"Y": Y}, **WINDOW),
            "conv_fprop: weight float32[9, 3, 2, 2] has 9 maps, not a multiple of 2 groups",
        ),
        (
            graph_of("conv_fprop", CONV, {"Y": X}, **WINDOW),
            "conv_fprop: Y float32[2, 6, 5, 5] must have the sizes [2, 8, 4, 4], for image",
        ),
        (
            graph_of("conv_fprop", CONV, {"Y": Y}, **{**WINDOW, "stride": (1,)}),
            "conv_fprop: stride [1] must have 2 entries",
        ),
        (
            graph_of("conv_fprop", {"image": X, "weight": W[:3]}, {"Y": Y}, **WINDOW),
            "must have one rank, 4 or 5",
        ),
        (
            graph_of("matmul", {"A": (1, 2, 3), "B": (1, 4, 5)}, {"C": (1, 2, 5)}),
            "matmul: A float32[1, 2, 3] has 3 columns, B float32[1, 4, 5] has 4 rows",
        ),
        (
            graph_of("matmul", {"A": (2, 2, 3), "B": (3, 3, 5)}, {"C": (2, 2, 5)}),
            "matmul: batch axes of A float32[2, 2, 3] and B float32[3, 3, 5] do not broadcast",
        ),
        (
            graph_of("matmul", {"A": (2, 3), "B": (3, 5)}, {"C": (2, 5)}),
            "must have one rank, at least 3",
        ),
        (
            graph_of("matmul", {"A": (1, 2, 3), "B": (1, 3, 5)}, {"C": (1, 2, 6)}),
            "matmul: C float32[1, 2, 6] must have the sizes [1, 2, 5]",
        ),
        (
            graph_of("add", {"a": X, "b": Y}, {"out": X}),
            "add: float32[2, 6, 5, 5] and float32[2, 8, 4, 4] do not broadcast",
        ),
        (graph_of("add", {"a": X}, {"out": X}), "add: 1 operands, wanted 2"),
        (
            graph_of("relu", {"a": V}, {"out": X}),
            "relu: out float32[2, 6, 5, 5] must have the sizes [1, 6, 1, 1], as the operands",
        ),
        (
            graph_of("reduction", {"input": X}, {"out": (2, 3, 1, 1)}, mode="ADD"),
            "reduction: out float32[2, 3, 1, 1] must have the sizes of input",
        ),
        (
            graph_of("reduction", {"input": X}, {"out": V}, mode="MAX"),
            "reduction: mode is 'MAX', wanted 'ADD'",
        ),
        (
            graph_of("genstats", {"input": X}, {"SUM": V, "SQ_SUM": R}),
            "genstats: SQ_SUM float32[2, 1, 1, 1] must have the sizes [1, 6, 1, 1], one value for",
        ),
        (
            graph_of("batchnorm", {**BATCH, "scale": R}, {"Y": X, "mean": V, "inv_var": V}),
            "batchnorm: scale float32[2, 1, 1, 1] must have the sizes [1, 6, 1, 1]",
        ),
        (
            graph_of("batchnorm", {**BATCH, "epsilon": V}, {"Y": X, "mean": V, "inv_var": V}),
            "batchnorm: epsilon must be a constant",
        ),
        (
            graph_of("layernorm", LAYER, {"Y": X, "mean": V, "inv_var": R}),
            "layernorm: mean float32[1, 6, 1, 1] must have the sizes [2, 1, 1, 1], one value for",
        ),
        (
            graph_of("sdpa", {"q": Q, "k": (2, 3, 7, 8), "v": (2, 3, 7, 8)}, {"O": Q}, **SDPA),
            "sdpa: q float32[2, 4, 5, 8] has 4 heads, not a multiple of the 3 of k",
        ),
        (
            graph_of("sdpa", {"q": Q, "k": Q, "v": (2, 4, 6, 8)}, {"O": Q}, **SDPA),
            "sdpa: v float32[2, 4, 6, 8] must have the sizes [2, 4, 5, 8], for q",
        ),
        (
            graph_of("sdpa", {"q": Q, "k": Q, "v": Q, "bias": (2, 2, 5, 5)}, {"O": Q}, **SDPA),
            "sdpa: bias float32[2, 2, 5, 5] must have the sizes [2, 4, 5, 5], or 1",
        ),
        (
            graph_of("sdpa", {"q": Q[1:], "k": Q, "v": Q}, {"O": Q}, **SDPA),
            "must have 4 axes",
        ),
        (
            graph_of("sdpa", {"q": Q, "k": Q, "v": Q}, {"O": Q}, **{**SDPA, "attn_scale": np.inf}),
            "sdpa: attn_scale is inf, wanted a finite number",
        ),
        (graph_of("fft", {"a": X}, {"out": X}), "fft: not an operation; there are ['add', "),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(graph: Graph, text: str) -> None:
    with pytest.raises(SpecError, match=re.escape(text)):
        graph.validate()


def square(**changes: Any) -> Graph:
    """out = a, on 2 x 3, with changes to the output's array."""
    a = Array(FIRST["in"], (2, 3), (3, 1), "float32")
    out = replace(Array(FIRST["out"], (2, 3), (3, 1), "float32"), **changes)
    return Graph((a, out), (Node("identity", (("a", a.uid),), (("out", out.uid),)),))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"stride": (1,)}, "array 1001: 2 sizes and 1 strides"),
        ({"dim": (2, 0)}, r"array 1001: sizes \(2, 0\) must be >= 1"),
        ({"stride": (3, 0)}, r"array 1001: strides \(3, 0\) must be >= 1"),
        ({"stride": (2, 1)}, r"array 1001: sizes \(2, 3\) and strides \(2, 1\) overlap"),
        ({"uid": 1}, "cudnn graph: two arrays have one uid"),
    ],
)
def test_memory_that_does_not_fit_is_named(changes: Any, text: str) -> None:
    with pytest.raises(SpecError, match=text):
        square(**changes).validate()


def test_operations_stand_in_an_order_in_which_they_can_run() -> None:
    a = Array(FIRST["in"], (2,), (1,), "float32")
    b = Array(FIRST["virtual"], (2,), (1,), "float32")
    y = Array(FIRST["out"], (2,), (1,), "float32")
    first = Node("relu", (("a", a.uid),), (("out", b.uid),))
    second = Node("tanh", (("a", b.uid),), (("out", y.uid),))
    Graph((a, b, y), (first, second)).validate()
    for nodes, text in (
        ((second, first), "tanh: a is array 4001, which nothing has made yet"),
        ((first, first), "relu: out is array 4001, which exists already"),
        ((replace(first, ins=(("a", 5),)),), "relu: a is array 5, which is not declared"),
    ):
        with pytest.raises(SpecError, match=text):
            Graph((a, b, y), nodes).validate()


def test_copies_keep_the_rank() -> None:
    a = Array(FIRST["in"], (2, 3), (3, 1), "float32")
    with pytest.raises(SpecError, match=r"copy: source float32\[2, 3\] and target float32\[6\]"):
        Copy(a, Array(FIRST["out"], (6,), (1,), "float32")).validate()


def test_a_uid_says_where_the_memory_is() -> None:
    for kind, first in FIRST.items():
        assert place(first) == (kind, 0)
        assert place(first + 7) == (kind, 7)


def test_scratch_memory_is_laid_out_in_aligned_pieces() -> None:
    a = Array(FIRST["in"], (2, 3), (3, 1), "float32")
    s = Array(FIRST["scratch"], (2, 3), (3, 1), "bfloat16")
    t = Array(FIRST["scratch"] + 1, (2, 300), (300, 1), "float32")
    work = Work((Copy(a, s), Copy(a, t)))
    assert work.scratch() == ((0, 256), 256 + 2560)


def test_strides() -> None:
    assert rows((2, 3, 4)) == (12, 4, 1)
    assert channels_last((2, 3, 4, 5)) == (60, 1, 15, 3)


def test_evaluation_reads_and_writes_by_strides() -> None:
    graph = square(stride=(1, 2))
    y = np.zeros(6, np.float32)
    evaluate(graph, {1: np.arange(6, dtype=np.float32), 1001: y})
    assert y.tolist() == [0, 3, 1, 4, 2, 5]
    with pytest.raises(TypeError, match="array 1 is float32, its memory float64"):
        evaluate(graph, {1: np.zeros(6), 1001: y})
    with pytest.raises(ValueError, match="array 1 reaches over 6 of 5"):
        evaluate(graph, {1: np.zeros(5, np.float32), 1001: y})


def test_equal_graphs_are_one_key() -> None:
    assert square() == square() and hash(square()) == hash(square())
    assert square() != square(stride=(1, 2))
