# SPDX-License-Identifier: Apache-2.0
"""The texts of errors in nodes: each names the node, what came and what was wanted."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from nnl.converters.onnx import load  # noqa: E402
from nnl.converters.onnx.file.errors import OnnxError  # noqa: E402
from nnl.converters.onnx.file.reader import read  # noqa: E402

ML, TRAINING = "ai.onnx.ml", "ai.onnx.preview.training"


def i(*values):
    return np.array(values, np.int64)


def f(*shape):
    return np.ones(shape, np.float32)


def run(op, inputs, outputs=1, opset=20, domain="", **attributes):
    """Run one node on constants."""
    names = ["" if a is None else f"c{k}" for k, a in enumerate(inputs)]
    made = [f"y{k}" for k in range(outputs)]
    weights = [numpy_helper.from_array(a, n) for n, a in zip(names, inputs, strict=True) if n]
    graph = helper.make_graph(
        [helper.make_node(op, names, made, domain=domain, **attributes)],
        "g",
        [],
        [onnx.ValueInfoProto(name=n) for n in made],
        weights,
    )
    imports = [
        helper.make_opsetid("", opset),
        helper.make_opsetid(ML, 5),
        helper.make_opsetid(TRAINING, 1),
    ]
    return load(helper.make_model(graph, opset_imports=imports, ir_version=9)).run()


X = f(1, 2, 5, 5)
W = f(2, 2, 3, 3)
WINDOW = {"kernel_shape": [3, 3]}
TREE = {
    "n_targets": 1,
    "tree_roots": [0],
    "nodes_modes": numpy_helper.from_array(np.zeros(1, np.uint8)),
    "nodes_featureids": [0],
    "nodes_splits": numpy_helper.from_array(f(1)),
    "nodes_truenodeids": [0],
    "nodes_trueleafs": [0],
    "nodes_falsenodeids": [0],
    "nodes_falseleafs": [0],
    "leaf_targetids": [0],
    "leaf_weights": numpy_helper.from_array(f(1)),
}
LEAVES = {**TREE, "nodes_trueleafs": [1], "nodes_falseleafs": [1]}

CASES = [
    ("Div", [i(3), i(0)], {}, "divides an integer by zero"),
    ("Constant", [], {}, "has no value attribute"),
    ("Reshape", [f(2), i(1, 2, 0)], {}, r"keeps size 2 of x, which has the shape \(2,\)"),
    ("Reshape", [f(6), i(4, -1)], {}, r"cannot put the shape \(6,\) into \(4, -1\)"),
    ("Unsqueeze", [f(2), i(0, 0)], {}, r"adds an axis twice: \(0, 0\)"),
    ("Split", [f(5), i(2, 2)], {"outputs": 2}, r"cuts the size 5 into \(2, 2\)"),
    ("Pad", [f(2, 2), i(1, 1)], {}, "has 2 pads for 2 axes"),
    ("Range", [i(0)[0], i(5)[0], i(0)[0]], {}, "has a step of 0"),
    ("Cast", [f(2)], {"to": 99}, "to has the element type 99, which ONNX does not define"),
    ("Gather", [f(2), i(2)], {}, r"has the index 2, outside \[-2, 2\)"),
    ("Transpose", [f(2, 2)], {"perm": [0, 0]}, "node Transpose 'y0': ShapeError: transpose: axes"),
    ("TopK", [f(3), i(4)], {"outputs": 2}, "k is 4, the axis has 3"),
    ("TopK", [f(3), i(1, 2)], {"outputs": 2}, r"k has the shape \(2,\), wanted one number"),
    ("TensorScatter", [f(2, 3), f(2, 1), i(0, 3)], {"opset": 24, "axis": 1}, "writes up to 3"),
    ("TensorScatter", [f(2, 3), f(2, 1)], {"opset": 24, "axis": 0}, "axis must not be the batch"),
    (
        "MatMul",
        [f(2, 3), f(2, 3)],
        {},
        r"multiplies shapes \(2, 3\) and \(2, 3\): the inner sizes differ",
    ),
    ("Gemm", [f(2), f(2, 3)], {}, r"multiplies shapes \(2,\) and \(2, 3\), wanted matrices"),
    ("Gemm", [f(2, 2), f(3, 3)], {}, "the inner sizes differ"),
    ("Conv", [X, W], {"strides": [0, 1]}, r"strides \(0, 1\) and dilations .* must be at least 1"),
    ("Conv", [X, W], {"strides": [1]}, r"window \(3, 3\), strides \(1,\): wanted 2 numbers each"),
    ("Conv", [X, W], {"pads": [1, 1]}, r"pads \(1, 1\): wanted 4 numbers"),
    ("Conv", [X, f(2, 3, 3, 3)], {}, "node Conv 'y0': ShapeError: convolution: "),
    ("MaxPool", [X], {"kernel_shape": [3]}, r"kernel_shape \(3,\): wanted 2 numbers"),
    ("MaxPool", [X], {"kernel_shape": [9, 9]}, "is larger than the padded input"),
    ("AveragePool", [X], {**WINDOW, "pads": [2**40] * 4}, "wants an array of shape"),
    (
        "BatchNormalization",
        [X, f(2), f(2), f(2), f(2)],
        {"opset": 8, "spatial": 0},
        "spatial=0 is not supported",
    ),
    ("Resize", [X, None, None, None], {}, "wants scales or sizes, not both and not neither"),
    ("Resize", [X, None, None, i(4)], {}, "has 1 scales or sizes for 4 axes"),
    ("Resize", [X, None, None, i(1, 2, 4, 4)], {"mode": "best"}, "mode is 'best', wanted one of"),
    ("Resize", [X, None, -f(4)], {}, "wanted numbers above 0"),
    ("GridSample", [X, f(1, 2, 2, 2)], {"mode": "best"}, "mode is 'best', wanted nearest, linear"),
    ("MaxRoiPool", [X, 9 * f(1, 5)], {"pooled_shape": [1, 1]}, "a box is in the image 9 of 1"),
    ("RNN", [f(2, 1, 1), f(2, 3, 1), f(2, 3, 3)], {"outputs": 2}, "'forward' with weights for 2"),
    (
        "RNN",
        [f(2, 1, 1), f(1, 3, 1), f(1, 3, 3), None, np.array([5], np.int32)],
        {"outputs": 2},
        r"sequence_lens is \[5\] for 2 steps",
    ),
    (
        "GRU",
        [f(2, 1, 1), f(1, 3, 1), f(1, 3, 1)],
        {"outputs": 2, "activations": ["Tanh"]},
        "has 1 activations, wanted 2",
    ),
    (
        "RNN",
        [f(2, 1, 1), f(1, 3, 1), f(1, 3, 3)],
        {"outputs": 2, "activations": ["Best"]},
        "activation 'Best' is unknown, known are",
    ),
    ("Col2Im", [f(1, 5, 15), i(5, 5), i(1, 5)], {"pads": [0, 2**20, 0, 2**20]}, "has 15 places of"),
    (
        "TfIdfVectorizer",
        [i(1, 2)],
        {
            "min_gram_length": 1,
            "max_gram_length": 2**62,
            "max_skip_count": 2**62,
            "mode": "TF",
            "ngram_counts": [0, 2**62],
            "ngram_indexes": [0],
            "pool_int64s": [1],
        },
        "wanted places in a pool of 1 in order",
    ),
    ("LRN", [X], {"size": 0}, "size is 0, wanted at least 1"),
    (
        "LpPool",
        [f(1, 1, 32, 32)],
        {"kernel_shape": [2**21, 2], "auto_pad": "SAME_UPPER"},
        r"a window \(2097152, 2\) at \(32, 32\) places would take too long",
    ),
    (
        "MaxPool",
        [f(1, 1, 9999)],
        {"kernel_shape": [4999], "dilations": [2]},
        r"a window \(4999,\) with dilations, wanted 4096 taps or less",
    ),
    ("StringConcat", [np.array(["a" * 2**20]), np.array(["b"])], {}, "more than 1048576 charact"),
    (
        "StringSplit",
        [np.array(["," * 2**18] + ["a"] * 2**11, object)],
        {"delimiter": ",", "outputs": 2},
        "wants an array of shape",
    ),
    ("RegexFullMatch", [np.array(["a" * 10**6])], {"pattern": "a{99}"}, "too long for a pattern"),
    ("GatherElements", [X, i(0).reshape(1, 1)], {}, "take_along|IndexError"),
    # its function makes a range of that many axes
    ("RMSNormalization", [X, f(5)], {"axis": -(2**21), "opset": 23}, "axes has 2097152 numbers"),
    ("DFT", [f(1, 4, 2), None, i(-1)[0]], {}, "transforms the axis of real and imaginary parts"),
    ("DFT", [f(1, 4, 2), i(0)[0]], {}, "dft_length is 0, wanted at least 1"),
    ("STFT", [f(1, 4, 1), i(0)[0], f(2)], {}, "frame_step is 0, frame_length 2, for 4 samples"),
    ("SequenceAt", [], {}, "has 0 inputs, wanted 2 to 2"),
    ("SplitToSequence", [f(4), i(0)[0]], {}, "split is 0, wanted at least 1"),
    ("SplitToSequence", [f(4), i(1, 2)], {}, r"cuts the size 4 into \(1, 2\)"),
    ("OptionalGetElement", [None], {}, "the optional is empty"),
    ("RegexFullMatch", [np.array(["a"])], {"pattern": "("}, r"the pattern '\(' is none"),
    ("RegexFullMatch", [np.array(["a"])], {"pattern": "a" * 20000}, "more than 10000 characters"),
    ("ImageDecoder", [np.zeros(9, np.uint8)], {}, "the stream is no image that pillow reads"),
    ("LabelEncoder", [i(1)], {"domain": ML}, "has no keys"),
    ("TreeEnsemble", [f(1, 1)], {"domain": ML, **TREE}, "lead to node 0 of 1: it has a cycle"),
    (
        "TreeEnsemble",
        [f(1, 1)],
        {"domain": ML, **LEAVES, "post_transform": 5},
        "post_transform is 5, wanted one of",
    ),
    ("Adam", [f(), i(0)[0], f(2)], {"domain": TRAINING}, "has 1 tensors, wanted a multiple of 4"),
    ("Sigmoid", [np.array(["a"])], {}, "strings cannot be computed with"),
    ("Sin", [np.ones(2, np.complex64)], {}, "type complex64 cannot be computed with"),
    ("Flatten", [f(2)], {"axes": 3}, r"Flatten-13 has no attribute 'axes'"),
]


@pytest.mark.parametrize(("op", "inputs", "settings", "message"), CASES)
def test_the_error_of(op, inputs, settings, message):
    with np.errstate(all="ignore"), pytest.raises(OnnxError, match=message) as caught:
        run(op, inputs, **settings)
    assert f"node {settings.get('domain', '')}{'.' if 'domain' in settings else ''}{op} " in str(
        caught.value
    )


def test_a_position_outside_of_a_sequence():
    nodes = [
        helper.make_node("SequenceConstruct", ["x"], ["s"]),
        helper.make_node("SequenceAt", ["s", "p"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(i(3)[0], "p")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    with pytest.raises(OnnxError, match="position 3 is outside a sequence of 1"):
        load(proto).run(f(2))


def test_scans_of_different_lengths():
    body = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["c"])],
        "b",
        [onnx.ValueInfoProto(name=n) for n in "ab"],
        [onnx.ValueInfoProto(name="c")],
    )
    with pytest.raises(OnnxError, match=r"scans inputs of different lengths \[2, 3\]"):
        run("Scan", [f(2), f(3)], num_scan_inputs=2, body=body)


@pytest.mark.parametrize(
    ("values", "at", "shape", "message"),
    [
        (f(1), i(9), (4,), "has 1 values and indices"),
        (f(1), np.array([[5]]), (4,), "has an index outside its shape"),
        (f(1), i(0), (-1,), r"has the shape \(-1,\)"),
    ],
)
def test_sparse_tensors_that_do_not_fit(values, at, shape, message):
    tensors = [numpy_helper.from_array(a, n) for a, n in ((values, "s"), (at, "i"))]
    sparse = onnx.SparseTensorProto(values=tensors[0], indices=tensors[1], dims=shape)
    graph = onnx.GraphProto(name="g", sparse_initializer=[sparse])
    graph.output.add(name="s")
    with pytest.raises(OnnxError, match=f"sparse tensor 's' {message}"):
        read(helper.make_model(graph))


def test_a_model_without_a_graph():
    with pytest.raises(OnnxError, match="the model has no graph"):
        read(onnx.ModelProto(ir_version=8))
    with pytest.raises(OnnxError, match="has no graph"):
        read(b"")


def test_a_window_of_channels_may_be_larger_than_they_are():
    x = np.random.default_rng(0).normal(size=(1, 3, 2, 2)).astype(np.float32)
    (y,) = run("LRN", [x], size=2**40)
    want = x / (1 + 1e-4 / 2**40 * (x * x).sum(1, keepdims=True)) ** 0.75
    np.testing.assert_allclose(y, want, rtol=1e-6)


def test_a_scan_of_more_inputs_than_there_are():
    names = [onnx.ValueInfoProto(name=n) for n in "ab"]
    body = helper.make_graph(
        [helper.make_node("Identity", ["a"], ["b"])], "g", names[:1], names[1:]
    )
    for count in (2**31, 0, -(2**62)):
        with pytest.raises(OnnxError, match=f"num_scan_inputs is {count}, and there are 1 inputs"):
            run("Scan", [f(3, 2)], body=body, num_scan_inputs=count)


def test_loops_and_functions_have_one_budget(monkeypatch):
    """Functions that call the one before twice: 2^40 calls of the first."""
    doubled = [
        helper.make_function(
            "d",
            f"f{k}",
            ["a"],
            ["c"],
            [
                helper.make_node(
                    f"f{k - 1}" if k else "Identity", ["a"], ["b"], domain="d" * (k > 0)
                ),
                helper.make_node(
                    f"f{k - 1}" if k else "Identity", ["b"], ["c"], domain="d" * (k > 0)
                ),
            ],
            [helper.make_opsetid("", 18), helper.make_opsetid("d", 1)],
        )
        for k in range(40)
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("f39", ["x"], ["y"], domain="d")],
        "g",
        [value("x", TensorProto.FLOAT, [2])],
        [value("y", TensorProto.FLOAT, [2])],
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("d", 1)]
    model = helper.make_model(graph, opset_imports=imports, functions=doubled, ir_version=9)
    monkeypatch.setattr("nnl.converters.onnx.running.interpreter.MAX_RUNS", 500)
    with pytest.raises(OnnxError, match="node d.f39 .*: loops and functions run more than 500 tim"):
        load(model).run(f(2))


def test_errors_of_the_engine_name_the_node(monkeypatch):
    def refuse(*args, **kw):
        raise RuntimeError("could not create a primitive")

    monkeypatch.setattr("nnl.functions.deconvolution", refuse)
    message = "node ConvTranspose 'y0': it cannot be computed: could not create"
    with pytest.raises(OnnxError, match=message):
        run("ConvTranspose", [X, f(2, 1, 3, 3)])
