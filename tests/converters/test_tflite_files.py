# SPDX-License-Identifier: Apache-2.0
"""TensorFlow Lite's files of others: what its interpreter makes of them, nnl does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
from nnl.cli.main import main
from nnl.converters.tflite.building import IMPORTERS
from nnl.converters.tflite.reader import TfliteFile
from nnl.converters.tflite.refused import REFUSED
from nnl.converters.tflite.schema import OPERATORS
from nnl.ext.native import library
from tests.converters.tflite_files import Graph, Made, agrees, interpreter, invoked, normal

SAME, VALID, TANH = 0, 1, 4


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


@case(5)
def floor_mod(g: Graph, x: int) -> Any:
    """Also where the quotient is larger than float32 tells whole numbers apart."""
    y = g.constant(np.array([3, 7, -3, 2, -2], np.float32))
    far = g.constant(np.array([1e8, 3e9, 1e8, 7.5, 7.5], np.float32))
    return [g.op("FLOOR_MOD", [g.op("ADD", [x, far], g.tensor((5,))), y], g.tensor((5,)))]


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


@case(1, 7, 6, 2)
def windows(g: Graph, x: int) -> Any:
    """With padding that is larger behind, that is none, and that is for one pixel alone."""
    found = []
    for padding, stride, size in ((SAME, 2, 3), (SAME, 1, 2), (SAME, 3, 2), (VALID, 2, 3)):
        h, w = [-(-n // stride) if padding == SAME else (n - size) // stride + 1 for n in (7, 6)]
        moves = dict(padding=padding, stride_w=stride, stride_h=stride)
        for name in ("MAX_POOL_2D", "AVERAGE_POOL_2D", "L2_POOL_2D"):
            y = g.tensor((1, h, w, 2))
            found.append(g.op(name, [x], y, filter_w=size, filter_h=size, **moves))
        weights, bias = g.constant(normal(3, size, size, 2)), g.constant(normal(3))
        found.append(g.op("CONV_2D", [x, weights, bias], g.tensor((1, h, w, 3)), **moves))
        out = [n * stride if padding == SAME else (n - 1) * stride + size for n in (7, 6)]
        made = g.constant([1, *out, 3], np.int32)
        ins = [made, g.constant(normal(3, size, size, 2)), x]
        found.append(g.op("TRANSPOSE_CONV", ins, g.tensor((1, *out, 3)), **moves))
    return found


@case(1, 5, 4, 2)
def one_pixel(g: Graph, x: int) -> Any:
    """The middle one, where centres of pixels are compared."""
    ins = [x, g.constant([1, 3], np.int32)]
    how = dict(half_pixel_centers=True)
    return [
        g.op(f"RESIZE_{k}", ins, g.tensor((1, 1, 3, 2)), **how)
        for k in ("BILINEAR", "NEAREST_NEIGHBOR")
    ]


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


@case(2, 4, 4, 8)
def blocks(g: Graph, x: int) -> Any:
    """Pixels and channels, or samples, from each other."""
    none = g.constant([[0, 0], [0, 0]], np.int32)
    size, edges = g.constant([2, 1], np.int32), g.constant([[1, 1], [0, 2]], np.int32)
    split = g.op("SPACE_TO_BATCH_ND", [x, size, edges], g.tensor((4, 3, 6, 8)))
    twos = g.constant([2, 2], np.int32)
    found = [
        split,
        g.op("BATCH_TO_SPACE_ND", [split, twos, none], g.tensor((1, 6, 12, 8))),
        g.op("DEPTH_TO_SPACE", [x], g.tensor((2, 8, 8, 2)), block_size=2),
        g.op("SPACE_TO_DEPTH", [x], g.tensor((2, 2, 2, 32)), block_size=2),
    ]
    return found


@case(2, 6)
def parts(g: Graph, x: int) -> Any:
    """Side by side, taken apart, and chosen."""
    axis, sizes = g.constant(np.int32(1), np.int32), g.constant([1, -1, 2], np.int32)
    halves = [g.tensor((2, 3)) for _ in range(2)]
    g.op("SPLIT", [axis, x], *halves, num_splits=2)
    uneven = [g.tensor((2, n)) for n in (1, 3, 2)]
    g.op("SPLIT_V", [x, sizes, axis], *uneven, num_splits=3)
    rows = g.constant(np.array([True, False]), np.bool_)
    chosen = g.op("SELECT", [rows, halves[0], halves[1]], g.tensor((2, 3)))
    side = g.op("PACK", halves, g.tensor((2, 2, 3)), axis=1, values_count=2)
    return [*halves, *uneven, chosen, side]


@case(2, 3)
def sizes(g: Graph, x: int) -> Any:
    """What only depends on shapes."""
    shape = g.op("SHAPE", [x], g.tensor((2,), np.int32), out_type=2)
    rank = g.op("RANK", [x], g.tensor((), np.int32))
    wide = g.constant([4, 1, 1], np.int32)
    both = g.op("BROADCAST_ARGS", [shape, wide], g.tensor((3,), np.int32))
    zero, one = (g.constant(np.int32(n), np.int32) for n in (0, 1))
    steps = g.op("RANGE", [zero, rank, one], g.tensor((2,), np.int32))
    full = g.op("FILL", [both, g.constant(np.float32(1.5))], g.tensor((4, 2, 3)))
    total = g.op("CAST", [steps], g.tensor((2,)), in_data_type=2, out_data_type=0)
    turned = g.op("REVERSE_V2", [shape, g.constant([0], np.int32)], g.tensor((2,), np.int32))
    flat = g.op("RESHAPE", [x, turned], g.tensor((3, 2)))
    return [g.op("MUL", [full, x], g.tensor((4, 2, 3))), total, flat]


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
