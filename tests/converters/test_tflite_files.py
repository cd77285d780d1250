# SPDX-License-Identifier: Apache-2.0
"""TensorFlow Lite's files of others: what its interpreter makes of them, nnl does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
from nnl.cli.main import main
from nnl.converters.tflite.building import IMPORTERS
from nnl.converters.tflite.flatbuffer import Damaged
from nnl.converters.tflite.reader import TfliteFile
from nnl.converters.tflite.refused import REFUSED
from nnl.converters.tflite.schema import OPERATORS
from nnl.converters.tflite.sparse import dense
from nnl.ext.native import library
from tests.converters.tflite_files import Graph, Made

RNG = np.random.default_rng(0)
SAME, TANH = 0, 4


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def interpreter(path: str, reference: bool = False) -> Any:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    kinds = OpResolverType
    kind = kinds.BUILTIN_REF if reference else kinds.AUTO
    found = Interpreter(path, num_threads=1, experimental_op_resolver_type=kind)
    found.allocate_tensors()
    return found


def invoked(found: Any, *values: Any) -> list[Any]:
    for t, v in zip(found.get_input_details(), values, strict=True):
        found.set_tensor(t["index"], np.asarray(v, t["dtype"]))
    found.invoke()
    return [found.get_tensor(t["index"]) for t in found.get_output_details()]


def agrees(path: str, runs: Sequence[Sequence[Any]], tolerance: float = 1e-5) -> None:
    """Several runs, one after the other, by LiteRT and by nnl."""
    theirs, network = interpreter(path), TfliteFile(path).network()
    for given in runs:
        want = invoked(theirs, *given)
        got = list(network.run(dict(zip(network.inputs, given, strict=True))).values())
        for a, b in zip(got, want, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


# ---- operators ----

CASES: dict[str, tuple[Callable[[Graph, int], Any], tuple[int, ...]]] = {}


def case(*shape: int) -> Any:
    """An operator that reads the input x of a shape; what it returns are the outputs."""

    def register(f: Any) -> Any:
        CASES[f.__name__] = f, shape
        return f

    return register


@case(1, 6, 6, 2)
def l2_pool(g: Graph, x: int) -> Any:
    sizes = dict(stride_w=2, stride_h=2, filter_w=3, filter_h=3)
    return g.op("L2_POOL_2D", [x], g.tensor((1, 3, 3, 2)), padding=SAME, **sizes)


@case(2, 3, 2, 4)
def windows_as_large_as_the_input(g: Graph, x: int) -> Any:
    strides = dict(padding=1, stride_w=3, stride_h=1, activation=1)
    w, bias = g.constant(normal(5, 3, 2, 4)), g.constant(normal(5))
    found = [g.op("CONV_2D", [x, w, bias], g.tensor((2, 1, 1, 5)), **strides)]
    w, bias = g.constant(normal(1, 3, 2, 4)), g.constant(normal(4))
    y = g.tensor((2, 1, 1, 4))
    return [*found, g.op("DEPTHWISE_CONV_2D", [x, w, bias], y, depth_multiplier=1, **strides)]


@case(1, 2, 3, 7)
def local_response(g: Graph, x: int) -> Any:
    numbers = dict(radius=2, bias=1.5, alpha=0.3, beta=0.6)
    return g.op("LOCAL_RESPONSE_NORMALIZATION", [x], g.tensor((1, 2, 3, 7)), **numbers)


@case(2, 5)
def svdf(g: Graph, x: int) -> Any:
    w, times, bias = g.constant(normal(6, 5)), g.constant(normal(6, 4)), g.constant(normal(3))
    state = g.tensor((2, 24), is_variable=True)
    return g.op("SVDF", [x, w, times, bias, state], g.tensor((2, 3)), rank=2, activation=1)


def lstm(g: Graph, x: int, time_major: bool, peephole: bool, inputs: int, clip: float) -> Any:
    units, steps, batch = 3, 4, 2
    wx = [g.constant(normal(units, inputs)) for _ in range(4)]
    wh = [g.constant(normal(units, units)) for _ in range(4)]
    peep = [g.constant(normal(units)) if peephole else -1 for _ in range(3)]
    bias = [g.constant(normal(units)) for _ in range(4)]
    states = [g.tensor((batch, units), is_variable=True) for _ in range(2)]
    shape = (steps, batch, units) if time_major else (batch, steps, units)
    ins = [x, *wx, *wh, *peep, *bias, -1, -1, *states]
    options = dict(activation=TANH, cell_clip=clip, time_major=time_major)
    return g.op("UNIDIRECTIONAL_SEQUENCE_LSTM", ins, g.tensor(shape), **options)


@case(2, 4, 5)
def lstm_plain(g: Graph, x: int) -> Any:
    return lstm(g, x, False, False, 5, 0.0)


@case(4, 2, 5)
def lstm_with_peepholes(g: Graph, x: int) -> Any:
    return lstm(g, x, True, True, 5, 0.4)


@case(2, 4, 5)
def rnn(g: Graph, x: int) -> Any:
    w, r, bias = g.constant(normal(3, 5)), g.constant(normal(3, 3)), g.constant(normal(3))
    ins = [x, w, r, bias, g.tensor((2, 3), is_variable=True)]
    return g.op("UNIDIRECTIONAL_SEQUENCE_RNN", ins, g.tensor((2, 4, 3)), activation=TANH)


@case(3, 4)
def update(g: Graph, x: int) -> Any:
    new, at = g.constant(normal(2, 2)), g.constant([2, 1], np.int32)
    return g.op("DYNAMIC_UPDATE_SLICE", [x, new, at], g.tensor((3, 4)))


@case(3, 4, 2)
def reversed_parts(g: Graph, x: int) -> Any:
    lengths = g.constant([0, 4, 3], np.int32)
    y = g.tensor((3, 4, 2))
    return g.op("REVERSE_SEQUENCE", [x, lengths], y, seq_dim=1, batch_dim=0)


@case(3, 4)
def fake_quant(g: Graph, x: int) -> Any:
    return g.op("FAKE_QUANT", [x], g.tensor((3, 4)), min=-0.9, max=1.3, num_bits=4)


@case(3, 4)
def bucketize(g: Graph, x: int) -> Any:
    y = g.tensor((3, 4), np.int32)
    return g.op("BUCKETIZE", [x], y, boundaries=[-0.5, 0.0, 0.7])


@case(3)
def sparse_to_dense(g: Graph, x: int) -> Any:
    at, shape = g.constant([[0, 1], [1, 0], [1, 2]], np.int32), g.constant([2, 3], np.int32)
    fill = g.constant(np.float32(0.5))
    return g.op("SPARSE_TO_DENSE", [at, shape, x, fill], g.tensor((2, 3)))


@case(3, 4)
def dilate(g: Graph, x: int) -> Any:
    by, fill = g.constant([2, 3], np.int32), g.constant(np.float32(0.5))
    return g.op("DILATE", [x, by, fill], g.tensor((5, 10)))


@case(2, 3, 4)
def set_diagonal(g: Graph, x: int) -> Any:
    return g.op("MATRIX_SET_DIAG", [x, g.constant(normal(2, 3))], g.tensor((2, 3, 4)))


@case(4, 2)
def segments(g: Graph, x: int) -> Any:
    ids, count = g.constant([1, 0, 1, 3], np.int32), g.constant(np.int32(5), np.int32)
    ordered = g.constant([0, 0, 1, 2], np.int32)
    found = [
        g.op(f"UNSORTED_SEGMENT_{k}", [x, ids, count], g.tensor((5, 2)))
        for k in ("SUM", "PROD", "MAX", "MIN")
    ]
    return [*found, g.op("SEGMENT_SUM", [x, ordered], g.tensor((3, 2)))]


@case(1, 2, 3, 3, 2)
def deconvolution_3d(g: Graph, x: int) -> Any:
    size, w = g.constant([1, 4, 6, 6, 3], np.int32), g.constant(normal(2, 3, 3, 3, 2))
    strides = dict(stride_d=2, stride_w=2, stride_h=2)
    y = g.tensor((1, 4, 6, 6, 3))
    return g.op("CONV_3D_TRANSPOSE", [size, w, x], y, padding=SAME, **strides)


@case(2, 1, 8)
def spectrum(g: Graph, x: int) -> Any:
    """Complex numbers between operators, moved on the way."""
    made = g.op("RFFT2D", [x, g.constant([1, 16], np.int32)], g.tensor((2, 1, 9), np.complex64))
    shape = g.constant([2, 9], np.int32)
    flat = g.op("RESHAPE", [made, shape], g.tensor((2, 9), np.complex64), new_shape=[2, 9])
    found = [g.op(k, [made], g.tensor((2, 1, 9))) for k in ("COMPLEX_ABS", "REAL", "IMAG")]
    return [*found, g.op("CAST", [flat], g.tensor((2, 9)), in_type=8, out_type=0)]


@case(4, 8)
def spectrum_of_pictures(g: Graph, x: int) -> Any:
    made = g.op("RFFT2D", [x, g.constant([4, 4], np.int32)], g.tensor((4, 3), np.complex64))
    return g.op("COMPLEX_ABS", [made], g.tensor((4, 3)))


@pytest.mark.parametrize("name", CASES)
def test_operators_are_those_of_litert(name: str, tmp_path: Path) -> None:
    made = Made()
    build, shape = CASES[name]
    g = made.graph()
    outs = build(g, g.input(shape))
    g.outputs = outs if isinstance(outs, list) else [outs]
    agrees(made.save(tmp_path / "a.tflite"), [[normal(*shape)] for _ in range(3)])


def test_random_numbers_are_drawn(tmp_path: Path) -> None:
    made = Made()
    g = made.graph()
    x, shape = g.input((1000,)), g.constant([1000], np.int32)
    for name in ("RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL"):
        drawn = g.op(name, [shape], g.tensor((1000,)), seed=3)
        g.outputs.append(g.op("ADD", [x, drawn], g.tensor((1000,))))
    network = TfliteFile(made.save(tmp_path / "a.tflite")).network()
    flat, bell = network.run({k: np.zeros(1000) for k in network.inputs}).values()
    assert 0 <= flat.min() < 0.05 and 0.95 < flat.max() < 1 and abs(flat.mean() - 0.5) < 0.05
    assert abs(bell.mean()) < 0.15 and abs(bell.std() - 1) < 0.1


# ---- graphs inside ----


def branches(made: Made, shape: Any) -> None:
    """Graph 1 gives x + 1, graph 2 3 x."""
    for name, number in (("ADD", 1.0), ("MUL", 3.0)):
        g = made.graph()
        x = g.input(shape)
        g.outputs = [g.op(name, [x, g.constant(np.float32(number))], g.tensor(shape))]


@pytest.mark.parametrize("known", [False, True])
def test_if_runs_one_of_two_graphs(known: bool, tmp_path: Path) -> None:
    made = Made()
    g = made.graph()
    x = g.input((2, 3))
    if known:
        condition = g.constant(np.array(True), np.bool_)
    else:
        axes = g.constant([0, 1], np.int32)
        total = g.op("SUM", [x, axes], g.tensor(()))
        condition = g.op("GREATER", [total, g.constant(np.float32(0))], g.tensor((), np.bool_))
    g.outputs = [g.op("IF", [condition, x], g.tensor((2, 3)), then_graph=1, else_graph=2)]
    branches(made, (2, 3))
    x = np.abs(normal(2, 3))
    agrees(made.save(tmp_path / "a.tflite"), [[x], [-x], [x]])


@pytest.mark.parametrize("known", [False, True])
def test_while_runs_a_graph_again(known: bool, tmp_path: Path) -> None:
    made = Made()
    g, test, body = made.graph(), made.graph(), made.graph()
    x = g.input((2,))
    count = g.constant(np.int32(0), np.int32) if known else g.input((), np.int32)
    outs = [g.tensor((), np.int32), g.tensor((2,))]
    g.op("WHILE", [count, x], *outs, condition_graph=1, body_graph=2)
    g.outputs = outs
    i, _ = test.input((), np.int32), test.input((2,))
    five = test.constant(np.int32(5), np.int32)
    test.outputs = [test.op("LESS", [i, five], test.tensor((), np.bool_))]
    i, y = body.input((), np.int32), body.input((2,))
    one = body.constant(np.int32(1), np.int32)
    body.outputs = [body.op("ADD", [i, one], body.tensor((), np.int32))]
    body.outputs.append(body.op("MUL", [y, body.constant([1.5, -2.0])], body.tensor((2,))))
    path, x = made.save(tmp_path / "a.tflite"), normal(2)
    agrees(path, [[x]] if known else [[x, 1], [x, 4], [x, 7]])


def test_composites_are_what_they_are_made_of(tmp_path: Path) -> None:
    made = Made()
    g = made.graph()
    x = g.input((2, 3))
    more = {"more_type": 21, "more": ("Composite", {"name": "own.thrice", "graph": 2})}
    y = g.op("STABLEHLO_COMPOSITE", [x], g.tensor((2, 3)), fields=more)
    g.outputs = [g.op("CALL", [y], g.tensor((2, 3)), subgraph=1)]
    branches(made, (2, 3))
    network = TfliteFile(made.save(tmp_path / "a.tflite")).network()
    x = normal(2, 3)
    (got,) = network.run(dict.fromkeys(network.inputs, x)).values()
    np.testing.assert_allclose(got, 3 * x + 1, rtol=1e-6)


# ---- states ----


def counting(path: Path, first: Any = ((1.0, 2.0),)) -> str:
    """y = s, s = s + x, from a first value that another graph assigns."""
    made = Made()
    g, start = made.graph(), made.graph()
    x = g.input((1, 2))
    g.op("CALL_ONCE", (), graph=1)
    handle = g.handle("sum/state")
    old = g.op("READ_VARIABLE", [handle], g.tensor((1, 2)))
    new = g.op("ADD", [old, x], g.tensor((1, 2)))
    g.op("ASSIGN_VARIABLE", [handle, new])
    g.outputs = [g.op("MUL", [old, g.constant(np.float32(2))], g.tensor((1, 2)))]
    if first is not None:
        start.op("ASSIGN_VARIABLE", [start.handle("sum/state"), start.constant(first)])
    return made.save(path)


def test_states_are_kept_from_run_to_run_and_reset_by_name(tmp_path: Path) -> None:
    path = counting(tmp_path / "a.tflite")
    runs = [normal(1, 2) for _ in range(4)]
    agrees(path, [[x] for x in runs])
    theirs = interpreter(path)
    want = np.stack([invoked(theirs, x)[0] for x in runs])
    network = TfliteFile(path).network()
    name = next(iter(network.inputs))
    assert list(network.states) == ["sum/state"]

    def check(run: Any, reset: Any) -> None:
        for _ in range(2):
            np.testing.assert_allclose([run(x) for x in runs], want, rtol=1e-6)
            reset("sum/state")

    check(lambda x: next(iter(network.run({name: x}).values())), network.reset)
    with pytest.raises(KeyError, match="reset: there is no state 'z' among"):
        network.reset("z")
    assert main(["convert", path, str(tmp_path / "a.nnlp")]) == 0
    programs = nn.load_program(tmp_path / "a.nnlp")
    check(lambda x: next(iter(programs.run(**{name: x}).values())), programs.reset)
    programs.run(**{name: runs[0]})
    programs.reset()
    np.testing.assert_array_equal(programs.arrays["sum/state"].data, [[1, 2]])
    with pytest.raises(KeyError, match="there is no 'z' to reset"):
        programs.reset("z")
    if library() is not None:
        file = library().ModelFile(str(tmp_path / "a.nnlp"))
        model = library().Model(file)

        def run(x: Any) -> Any:
            (y,) = model.run({name: x}).values()
            return np.frombuffer(y, np.float32).reshape(1, 2)

        check(run, file.reset)
        with pytest.raises(ValueError, match="has no parameter 'z'"):
            file.reset("z")


def test_other_formats_do_not_forget_states_unseen(tmp_path: Path, capsys: Any) -> None:
    path = counting(tmp_path / "a.tflite")
    for name in ("b.tflite", "b.onnx", "b.nnp", "b.nnb"):
        assert main(["convert", path, str(tmp_path / name)]) == 4
        assert "keep_states" in capsys.readouterr().err, name
        assert not (tmp_path / name).exists()


def test_what_states_begin_with_is_known(tmp_path: Path) -> None:
    path = counting(tmp_path / "a.tflite", None)
    with pytest.raises(ValueError, match="the state 'sum/state', which nothing has given a first"):
        TfliteFile(path).network()


def test_states_that_a_branch_assigns_are_refused(tmp_path: Path) -> None:
    made = Made()
    g = made.graph()
    x = g.input((1,))
    condition = g.op("GREATER", [x, g.constant([0.0])], g.tensor((1,), np.bool_))
    g.outputs = [g.op("IF", [condition, x], g.tensor((1,)), then_graph=1, else_graph=2)]
    branches(made, (1,))
    inside = made.graphs[2]
    inside.op("ASSIGN_VARIABLE", [inside.handle("s"), inside.inputs[0]])
    text = r"operator 1 \(IF\): only values of the run say whether it assigns the state 's'"
    with pytest.raises(ValueError, match=text):
        TfliteFile(made.save(tmp_path / "a.tflite")).network()


# ---- 8 bits ----


def quantized(scale: float, zero: int = 0) -> dict[str, Any]:
    return {"quantization": {"scale": [scale], "zero_point": [zero]}}


def test_a_stream_in_8_bits_has_the_numbers_of_litert(tmp_path: Path) -> None:
    """What wake words are made of: a window of frames is a state, everything is int8."""
    made = Made()
    g, start = made.graph(), made.graph()
    x = g.input((1, 1, 1, 8), np.int8, **quantized(0.05, 3))
    g.op("CALL_ONCE", (), graph=1)
    handle = g.handle("window")
    old = g.op("READ_VARIABLE", [handle], g.tensor((1, 2, 1, 8), np.int8, **quantized(0.05, 3)))
    rows = g.tensor((1, 3, 1, 8), np.int8, **quantized(0.05, 3))
    g.op("CONCATENATION", [old, x], rows, axis=1)
    limits = [g.constant(v, np.int32) for v in ([0, -2, 0, 0], [1, 3, 1, 8], [1, 1, 1, 1])]
    new = g.tensor((1, 2, 1, 8), np.int8, **quantized(0.05, 3))
    g.op("STRIDED_SLICE", [rows, *limits], new, begin_mask=13, end_mask=15)
    g.op("ASSIGN_VARIABLE", [handle, new])
    weights = RNG.integers(-127, 128, (4, 3, 1, 8))
    w = g.constant(weights, np.int8, **quantized(0.01))
    bias = g.constant([10, -20, 30, 0], np.int32, **quantized(0.0005))
    y = g.tensor((1, 1, 1, 4), np.int8, **quantized(0.06, -5))
    strides = dict(padding=1, stride_w=1, stride_h=1, activation=1)
    g.op("CONV_2D", [rows, w, bias], y, version=3, **strides)
    p = g.tensor((1, 1, 1, 4), np.int8, **quantized(1 / 256, -128))
    g.outputs = [g.op("LOGISTIC", [y], p, version=2)]
    zeros = start.constant(np.full((1, 2, 1, 8), 3), np.int8, **quantized(0.05, 3))
    start.op("ASSIGN_VARIABLE", [start.handle("window"), zeros])
    path = made.save(tmp_path / "a.tflite")
    theirs, network = interpreter(path), TfliteFile(path).network()
    for _ in range(20):
        frame = RNG.integers(-128, 128, (1, 1, 1, 8))
        want = (invoked(theirs, frame)[0].astype(np.float32) + 128) / 256
        (got,) = network.run(dict.fromkeys(network.inputs, (frame - 3) * 0.05)).values()
        np.testing.assert_allclose(got, want, atol=1e-6)


def test_weights_of_8_bits_alone_stand_for_real_numbers(tmp_path: Path) -> None:
    """As in the same file with the weights as floats. LiteRT's two kinds of kernels round what they
    read, each in another way."""
    weights, scale = RNG.integers(-127, 128, (4, 3, 3, 5)), 0.02
    paths, runs = [], [normal(1, 6, 6, 5)]
    for i in range(2):
        made = Made()
        g = made.graph()
        x = g.input((1, 6, 6, 5))
        if i:
            w = g.constant(weights * np.float32(scale))
        else:
            w = g.constant(weights, np.int8, **quantized(scale))
        y, bias = g.tensor((1, 6, 6, 4)), g.constant(normal(4) * 0)
        g.outputs = [g.op("CONV_2D", [x, w, bias], y, stride_w=1, stride_h=1, version=5)]
        paths.append(made.save(tmp_path / f"{i}.tflite"))
    hybrid, real = paths
    network = TfliteFile(hybrid).network()
    (got,) = network.run(dict.fromkeys(network.inputs, runs[0])).values()
    (want,) = invoked(interpreter(real), *runs)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    rounded = [invoked(interpreter(hybrid, reference), *runs)[0] for reference in (False, True)]
    assert all(1e-4 < np.abs(y - want).max() < 0.05 * np.ptp(want) for y in rounded)


@pytest.mark.parametrize("blocks", [False, True])
def test_sparse_weights_are_filled_up(blocks: bool, tmp_path: Path) -> None:
    w = np.zeros((4, 8), np.float32)
    kept = [(0, 1), (1, 0), (1, 1), (3, 0)] if blocks else [(0, 5), (2, 1), (2, 7), (3, 0)]
    values, rows = [], [0] * 5
    for i, j in kept:
        at = slice(4 * j, 4 * j + 4) if blocks else slice(j, j + 1)
        w[i, at] = normal(at.stop - at.start)
        values.append(w[i, at])
    rows = np.searchsorted([i for i, _ in kept], np.arange(5)).tolist()
    levels = [
        {"format": 0, "dense_size": 4},
        {
            "format": 1,
            "segments_type": 3,
            "segments": ("Vector3", {"values": rows}),
            "indices_type": 1,
            "indices": ("Vector1", {"values": [j for _, j in kept]}),
        },
    ]
    sparsity: dict[str, Any] = {"traversal_order": [0, 1], "levels": levels}
    if blocks:
        sparsity["traversal_order"] = [0, 1, 2]
        sparsity |= {"block_map": [1], "levels": [*levels, {"format": 0, "dense_size": 4}]}
    made = Made()
    g = made.graph()
    x = g.input((2, 8))
    stored = g.constant(np.concatenate(values), shape=(4, 8), sparsity=sparsity)
    full = g.op("DENSIFY", [stored], g.tensor((4, 8)))
    g.outputs = [g.op("FULLY_CONNECTED", [x, full], g.tensor((2, 4)))]
    path, x = made.save(tmp_path / "a.tflite"), normal(2, 8)
    agrees(path, [[x]])
    network = TfliteFile(path).network()
    (got,) = network.run(dict.fromkeys(network.inputs, x)).values()
    np.testing.assert_allclose(got, x @ w.T, rtol=1e-5, atol=1e-6)


def test_damaged_sparse_weights_are_told() -> None:
    def level(segments: Any, indices: Any) -> dict[str, Any]:
        read = [lambda _, v=v: {"values": v} for v in (segments, indices)]
        return {"format": 1, "dense_size": 0, "segments_type": 1, "segments": read[0],
                "indices_type": 1, "indices": read[1]}  # fmt: skip

    rows = {"format": 0, "dense_size": 2}
    good = {"traversal_order": [0, 1], "block_map": [], "levels": [rows, level([0, 1, 2], [1, 0])]}
    values = np.ones(2, np.float32)
    assert dense("w", good, values, (2, 2)).tolist() == [[0, 1], [1, 0]]
    for change, text in [
        ({"traversal_order": [0, 0]}, r"w has the sparse axes \[0, 0\], with \[2, 2\]"),
        ({"levels": [rows, level([0, 1], [1])]}, "w has 2 segments for 2 places"),
        ({"levels": [rows, level([0, 1, 3], [1, 0])]}, "w has 2 indices, wanted 3"),
        ({"levels": [rows, level([0, 1, 2], [1, 2])]}, r"w has values outside of \[2, 2\]"),
        ({"levels": [rows, level([0, 0, 1], [1])]}, "w has 2 values for 1 places"),
        ({"levels": [{**rows, "dense_size": 9}, rows]}, "w has more places than its 2 values"),
        ({"levels": [rows, {**rows, "format": 1, "segments_type": 0, "segments": None}]},
         "w has no segments"),
    ]:  # fmt: skip
        with pytest.raises(Damaged, match=text):
            dense("w", good | change, values, (2, 2))


def test_numbers_of_4_bits_and_halves_are_read(tmp_path: Path) -> None:
    made = Made()
    g = made.graph()
    x = g.input((1, 3))
    w = g.constant([0x2F, 0x0D], np.uint8, shape=(1, 3), type=17, **quantized(0.5))  # -1, 2, -3
    g.outputs = [g.op("FULLY_CONNECTED", [x, w], g.tensor((1, 1)))]
    half = g.constant([0x3F80, 0xC040, 0], np.uint16, shape=(1, 3), type=18)  # 1, -3, 0
    g.outputs.append(g.op("MUL", [x, half], g.tensor((1, 3))))
    network = TfliteFile(made.save(tmp_path / "a.tflite")).network()
    got, product = network.run(dict.fromkeys(network.inputs, np.array([[1, 10, 100]]))).values()
    assert got.tolist() == [[-0.5 + 10 - 150]] and product.tolist() == [[1, -30, 0]]


# ---- what is not read ----


def test_every_operator_of_the_schema_is_read_or_refused_with_a_sentence() -> None:
    from ai_edge_litert import schema_py_generated as schema

    numbers = {k: n for k, n in vars(schema.BuiltinOperator).items() if isinstance(n, int)}
    del numbers["PLACEHOLDER_FOR_GREATER_OP_CODES"]
    assert numbers == {k: row.number for k, row in OPERATORS.items()}
    for name in OPERATORS:
        assert (name in IMPORTERS) != (name in REFUSED), name
    assert all(len(why) > 20 for why in REFUSED.values())


def test_refusals_name_the_operator_and_say_why(tmp_path: Path) -> None:
    made = Made()
    g = made.graph()
    x = g.input((3,), np.bool_)
    g.outputs = [g.op("WHERE", [x], g.tensor((3, 1), np.int64))]
    text = r"nnl does not read operator 0 \(WHERE\): how many results it has depends on values"
    with pytest.raises(NotImplementedError, match=text):
        TfliteFile(made.save(tmp_path / "a.tflite"))


def test_graphs_that_run_each_other_without_end_are_told(tmp_path: Path) -> None:
    made = Made()
    for n in (1, 1):
        g = made.graph()
        g.outputs = [g.op("CALL", [g.input((1,))], g.tensor((1,)), subgraph=n)]
    with pytest.raises(ValueError, match=r"\(CALL\): its graphs run each other without end"):
        TfliteFile(made.save(tmp_path / "a.tflite")).network()
    made.graphs[1].operators[0]["options"] = ("CALL", {"subgraph": 7})
    with pytest.raises(ValueError, match=r"\(CALL\): there is no graph 7, of 2"):
        TfliteFile(made.save(tmp_path / "a.tflite")).network()


def test_complex_numbers_where_nobody_reads_them_are_told(tmp_path: Path) -> None:
    made = Made()
    g = made.graph()
    x, lengths = g.input((1, 4)), g.constant([1, 4], np.int32)
    made_here = g.op("RFFT2D", [x, lengths], g.tensor((1, 3), np.complex64))
    g.outputs = [g.op("TANH", [made_here], g.tensor((1, 3), np.complex64))]
    with pytest.raises(ValueError, match=r"\(TANH\): it reads complex numbers, which nnl does not"):
        TfliteFile(made.save(tmp_path / "a.tflite")).network()
