# SPDX-License-Identifier: Apache-2.0
"""Greedy decoders as Paddle's exporter writes them: x[:, i] = v at values of the run, loops whose
values change their shape in the first trip, slices up to a value. Beside ONNX Runtime."""

from pathlib import Path

import numpy as np
import pytest
from onnx import parser

import nnl as nn
from nnl.cli.main import main
from nnl.converters.onnx import load

ort = pytest.importorskip("onnxruntime")

# x[:, at:end] = v
ASSIGN = """
<ir_version: 8, opset_import: ["": 17]>
net ({kind}["b", 5, 3] x, int64[1] at, int64[1] stop, {kind}["b", {wide}, 3] v)
    => ({kind}[b, n, c] y)
<int64[1] one = {{1}}, int64[3] column = {{1, -1, 1}}> {{
    old = Slice (x, at, stop, one, one)
    shape = Shape (old)
    new = Expand (v, shape)
    first = Squeeze (at)
    last = Squeeze (stop)
    step = Squeeze (one)
    row = Range (first, last, step)
    places = Reshape (row, column)
    zero = Constant <value_ints = [0]> ()
    two = Constant <value_ints = [2]> ()
    three = Constant <value_ints = [3]> ()
    b = Slice (shape, zero, one, zero)
    c = Slice (shape, two, three, zero)
    times = Concat <axis = 0> (b, one, c)
    everywhere = Tile (places, times)
    y = ScatterElements <axis = 1> (x, everywhere, new)
}}
"""

# Counts up and writes down what it has, until it is over a limit; an If gives ranks 1 and 0.
DECODER = """
<ir_version: 8, opset_import: ["": 17]>
net (float["b", 2] x, float limit) => (float["b", n, 2] y, float["b", 2] last)
<int64[1] one = {1}, int64[1] none = {0}, int64 most = {6}, bool always = {1},
 int64[1] six = {6}, int64[1] two = {2}, int64[3] column = {1, -1, 1}, float[2] w = {1.5, 0.5},
 float[1] nothing = {0}> {
    size = Shape <start = 0, end = 1> (x)
    sizes = Concat <axis = 0> (size, six, two)
    kept0 = ConstantOfShape (sizes)
    i0 = Constant <value_float = 0.0> ()
    done0 = Constant <value_float = 0.0> ()
    kept, i, value, weight, done = Loop (most, always, kept0, i0, x, w, done0) <body = trip (
        int64 turn, bool going, float["b", 6, 2] held, float i_in, float["b", 2] old, float[2] v,
        float done_in
    ) => (bool goes, float["b", 6, 2] written, float i_out, float["b", 2] new, float[2] v,
          float done_out) {
        new = Mul (old, v)
        plus = Constant <value_float = 1.0> ()
        next = Add (i_in, plus)
        at = Cast <to = 7> (i_in)
        to = Cast <to = 7> (next)
        start = Reshape (at, one)
        to1 = Reshape (to, one)
        shape_held = Shape (held)
        long = Gather <axis = 0> (shape_held, one)
        end = Min (long, to1)
        part = Slice (held, start, end, one, one)
        shape = Shape (part)
        wide = Unsqueeze (new, one)
        spread = Expand (wide, shape)
        a = Squeeze (start)
        z = Squeeze (end)
        s = Squeeze (one)
        row = Range (a, z, s)
        places = Reshape (row, column)
        b = Slice (shape, none, one, none)
        t = Constant <value_ints = [2]> ()
        tt = Constant <value_ints = [3]> ()
        c = Slice (shape, t, tt, none)
        times = Concat <axis = 0> (b, one, c)
        all = Tile (places, times)
        written = ScatterElements <axis = 1> (held, all, spread)
        i_one = Unsqueeze (next, none)
        i_sum = Add (i_one, nothing)
        i_out = Squeeze (i_sum, none)
        sum = ReduceSum <keepdims = 0> (new)
        over = Greater (sum, limit)
        flag = If (over) <then_branch = yes () => (float f) {
            f = Constant <value_float = 1.0> ()
        }, else_branch = no () => (float g) {
            g = Add (done_in, nothing)
        }>
        done_out = Add (flag, nothing)
        half = Constant <value_float = 0.5> ()
        goes_one = Less (done_out, half)
        goes = Squeeze (goes_one)
    }>
    count = Cast <to = 7> (i)
    stop = Reshape (count, one)
    y = Slice (kept, none, stop, one, one)
    last = Identity (value)
}
"""


def session_of(model):
    options = ort.SessionOptions()
    options.log_severity_level = 3  # it warns of shapes that differ from what the model says
    return ort.InferenceSession(model.SerializeToString(), options)


@pytest.mark.parametrize("kind", ["float", "int64"])
@pytest.mark.parametrize("wide", [1, 2])
def test_part_that_a_run_names_is_assigned(kind, wide):
    model = parser.parse_model(ASSIGN.format(kind=kind, wide=wide))
    net, session, rng = load(model), session_of(model), np.random.default_rng(0)
    dtype = np.float32 if kind == "float" else np.int64
    for at, stop in ((0, 2), (1, 3), (3, 5), (-2, -1 if wide == 1 else 0), (2, 2)):
        if wide == 2 and (at < 0 or stop == at):
            continue  # ONNX's Expand refuses these
        given = {
            "x": rng.integers(-9, 9, (2, 5, 3)).astype(dtype),
            "at": np.array([at]),
            "stop": np.array([stop]),
            "v": rng.integers(-9, 9, (2, wide, 3)).astype(dtype),
        }
        (y,) = net.run(given)
        (want,) = session.run(None, given)
        np.testing.assert_array_equal(y, want)
        assert y.dtype == want.dtype
    plans = [e.runners is not None for e in net._plans._plans.values()]
    assert plans == [wide == 1]  # how many entries there are decides about wider ones


def test_values_wait_for_nodes_that_others_read():
    text = ASSIGN.format(kind="float", wide=1).replace("y)\n<", "y, int64[r] shape)\n<")
    model = parser.parse_model(text)
    given = {"x": np.zeros((1, 5, 3), np.float32), "at": np.array([1]), "stop": np.array([3])}
    given["v"] = np.ones((1, 1, 3), np.float32)
    for ours, theirs in zip(
        load(model).run(given), session_of(model).run(None, given), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


LIMITS = (-1.0, 3.0, 9.0, 1000.0)  # one trip, some, all


def test_greedy_decoder_is_a_static_graph():
    model = parser.parse_model(DECODER)
    net, session, rng = load(model), session_of(model), np.random.default_rng(0)
    with nn.parameter_scope("decoder"):
        for b in (1, 3):
            for limit in LIMITS:
                x = rng.random((b, 2)).astype(np.float32)
                given = {"x": x, "limit": np.array(limit, np.float32)}
                for ours, theirs in zip(net.run(given), session.run(None, given), strict=True):
                    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
                    assert ours.shape == theirs.shape
    assert all(e.runners is not None for e in net._plans._plans.values())


def test_greedy_decoder_converts_with_open_sizes(tmp_path: Path):
    model, rng = parser.parse_model(DECODER), np.random.default_rng(1)
    (tmp_path / "decoder.onnx").write_bytes(model.SerializeToString())
    assert main(["convert", str(tmp_path / "decoder.onnx"), str(tmp_path / "decoder.nnlp")]) == 0
    program, session = nn.load_program(tmp_path / "decoder.nnlp"), session_of(model)
    for b in (1, 2, 5):
        for limit in LIMITS:
            given = {
                "x": rng.random((b, 2)).astype(np.float32),
                "limit": np.array(limit, np.float32),
            }
            found = program.run(**given)
            theirs = session.run(None, given)
            np.testing.assert_allclose(found["y"], theirs[0], rtol=1e-6)
            np.testing.assert_allclose(found["last"], theirs[1], rtol=1e-6)


def test_whole_numbers_that_grow_in_a_loop_stay_exact():
    text = """
<ir_version: 8, opset_import: ["": 17]>
net (int64[1] x, int64 stop) => (int64[1] y)
<int64 most = {60}, bool always = {1}> {
    y = Loop (most, always, x) <body = trip (int64 turn, bool going, int64[1] a) =>
        (bool goes, int64[1] b) {
        c = Add (a, a)
        one = Constant <value_int = 1> ()
        b = Add (c, one)
        top = ReduceMax <keepdims = 0> (b)
        goes = Less (top, stop)
    }>
}
"""
    model = parser.parse_model(text)
    net, session = load(model), session_of(model)
    for stop in (10, 2**40 + 1):
        given = {"x": np.array([1]), "stop": np.array(stop)}
        np.testing.assert_array_equal(net.run(given)[0], session.run(None, given)[0])
