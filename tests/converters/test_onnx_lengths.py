# SPDX-License-Identifier: Apache-2.0
"""RNN, LSTM and GRU of ONNX whose lengths of samples are inputs, beside ONNX Runtime."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import nnl as nn
from nnl.cli.main import main
from nnl.converters.onnx import OnnxError, load

ort = pytest.importorskip("onnxruntime")
SIZE, STATES = 3, 4
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def network(kind, direction, **attributes):
    """One layer with weights, inputs x, n and initial states, outputs of all kinds."""
    rng, gates = np.random.default_rng(0), GATES[kind]
    d = 2 if direction == "bidirectional" else 1
    shapes = {
        "W": (d, gates * STATES, SIZE),
        "R": (d, gates * STATES, STATES),
        "B": (d, 2 * gates * STATES),
    }
    weights = {k: rng.normal(size=s).astype(np.float32) for k, s in shapes.items()}
    states = ["h", "c"] if kind == "LSTM" else ["h"]
    outputs = ["y", *[s + "_n" for s in states]]
    if kind == "GRU":
        attributes["linear_before_reset"] = 1
    node = helper.make_node(
        kind, ["x", "W", "R", "B", "n", *states], outputs,
        hidden_size=STATES, direction=direction, **attributes,
    )  # fmt: skip
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["t", "b", SIZE]),
        helper.make_tensor_value_info("n", TensorProto.INT32, ["b"]),
        *[helper.make_tensor_value_info(s, TensorProto.FLOAT, [d, "b", STATES]) for s in states],
    ]
    graph = helper.make_graph(
        [node], "g", inputs,
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs],
        [numpy_helper.from_array(a, k) for k, a in weights.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), d, states


def feed(states, d, t, lengths, rng, behind=np.nan):
    b = len(lengths)
    x = rng.normal(size=(t, b, SIZE)).astype(np.float32)
    for i, n in enumerate(lengths):
        x[n:, i] = behind
    first = {s: rng.normal(size=(d, b, STATES)).astype(np.float32) for s in states}
    return {"x": x, "n": np.array(lengths, np.int32), **first}


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", list(GATES))
def test_lengths_that_only_the_run_knows_are_those_of_onnx_runtime(kind, direction):
    model, d, states = network(kind, direction)
    session, rng = ort.InferenceSession(model.SerializeToString()), np.random.default_rng(1)
    with nn.parameter_scope(f"{kind} {direction}"):
        net = load(model)
        for t, lengths in ((4, [4, 1, 3]), (4, [2, 0, 4]), (1, [1]), (5, [2]), (5, [5])):
            given = feed(states, d, t, lengths, rng)
            plain = {**given, "x": np.nan_to_num(given["x"])}  # ours never reads what is behind
            for ours, theirs in zip(net.run(given), session.run(None, plain), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
        assert all(e.runners is not None for e in net._plans._plans.values())  # has static graphs


@pytest.mark.parametrize("wrong", [-1, 4])
def test_a_length_that_does_not_fit_is_an_error_of_the_node(wrong):
    model, d, states = network("GRU", "forward")
    net, rng = load(model), np.random.default_rng(2)
    with nn.parameter_scope("wrong length"):
        net.run(feed(states, d, 3, [1, 2], rng))
        given = feed(states, d, 3, [1, 2], rng)
        given["n"][1] = wrong
        with pytest.raises(OnnxError, match=rf"GRU.*sequence_lens is \[1, {wrong}\] for 3 steps"):
            net.run(given)


def test_clipped_gates_go_step_by_step_and_end_alike():
    model, d, states = network("LSTM", "bidirectional", clip=0.5)
    session, rng = ort.InferenceSession(model.SerializeToString()), np.random.default_rng(3)
    with nn.parameter_scope("clipped"):
        net = load(model)
        for lengths in ([4, 1, 3], [2, 0, 4]):
            given = feed(states, d, 4, lengths, rng, behind=0)
            for ours, theirs in zip(net.run(given), session.run(None, given), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_program_of_open_sizes_takes_lengths(tmp_path: Path):
    model, d, states = network("LSTM", "bidirectional")
    path, rng = tmp_path / "lstm.onnx", np.random.default_rng(4)
    path.write_bytes(model.SerializeToString())
    assert main(["convert", str(path), str(tmp_path / "lstm.nnlp")]) == 0
    program = nn.load_program(tmp_path / "lstm.nnlp")
    session = ort.InferenceSession(str(path))
    for t, lengths in ((4, [4, 1, 3]), (7, [2, 7]), (1, [1])):
        given = feed(states, d, t, lengths, rng, behind=0)
        found = program.run(**given)
        for name, theirs in zip(["y", "h_n", "c_n"], session.run(None, given), strict=True):
            np.testing.assert_allclose(found[name], theirs, rtol=1e-5, atol=1e-5)
