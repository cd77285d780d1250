# SPDX-License-Identifier: Apache-2.0
"""The element-wise engine: programs, stretching inputs, element types, memory shared by arrays."""

from __future__ import annotations

import numpy as np
import pytest

from nnl.core.ops.elementwise import program_of
from tests.native.kernels import BF16, F16, F32, from_channels_last, require_library
from tests.native.programs import Program, in_place, may_overwrite, run

RNG = np.random.default_rng(3)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(F32)


def close(got: np.ndarray, want: np.ndarray, tolerance: float = 2e-6) -> None:
    assert got.shape == want.shape
    np.testing.assert_allclose(got.astype(F32), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(), (1,), (5,), (4, 4), (1000, 7), (3, 1025), (70001,), (0, 3)])
def test_a_chain_is_one_kernel(shape: tuple[int, ...]) -> None:
    x, b = normal(*shape), normal(*shape)
    p = Program(shape, shape)
    h = p.add("mul_scalar", 0, shape=shape, val=1.5)
    h = p.add("add2", h, 1, shape=shape)
    h = p.add("tanh", h, shape=shape)
    y = p.add("gate", h, 0, shape=shape, low=-1.0, high=0.5, closed=False)
    got = run("fused_elementwise", p.attributes(y), [x, b], [(shape, F32)])
    close(got, np.tanh(x * 1.5 + b) * ((x > -1) & (x < 0.5)))


def test_a_hundred_instructions_keep_their_order() -> None:
    x = normal(9, 123)
    p, y, want = Program(x.shape), 0, x.copy()
    for i in range(50):
        y = p.add("add_scalar", y, shape=x.shape, val=i * 0.01)
        y = p.add("mul_scalar", y, shape=x.shape, val=0.98)
        want = (want + np.float32(i * 0.01)) * np.float32(0.98)
    close(run("fused_elementwise", p.attributes(y), [x], [(x.shape, F32)]), want, 1e-5)


def test_many_values_live_at_once() -> None:
    """More registers than fit with the usual block."""
    x = normal(3000)
    p = Program(x.shape)
    parts = [p.add("mul_scalar", 0, shape=x.shape, val=float(i)) for i in range(60)]
    total = parts[0]
    for part in parts[1:]:
        total = p.add("add2", total, part, shape=x.shape)
    got = run("fused_elementwise", p.attributes(total), [x], [(x.shape, F32)])
    close(got, x * sum(range(60)), 1e-4)


def test_several_outputs_one_of_which_is_used_on() -> None:
    x = normal(5000)
    p = Program(x.shape)
    a = p.add("exp", 0, shape=x.shape)
    b = p.add("mul2", a, 0, shape=x.shape)
    outs = [(x.shape, F32), (x.shape, BF16), (x.shape, F32)]
    got = run("fused_elementwise", p.attributes(a, a, b), [x], outs)
    close(got[0], np.exp(x))
    assert np.array_equal(got[1], np.exp(x).astype(BF16)) or np.allclose(
        got[1].astype(F32), np.exp(x), rtol=1e-2
    )
    close(got[2], np.exp(x) * x)


@pytest.mark.parametrize(
    "shape, other",
    [
        ((4, 6, 5, 7), (1, 6, 1, 1)),
        ((4, 6, 5, 7), (4, 1, 1, 1)),
        ((4, 6, 5, 7), (1, 1, 5, 7)),
        ((4, 6, 5, 7), (1, 6, 1, 7)),
        ((4, 6, 5, 7), (4, 1, 5, 1)),
        ((4, 6, 5, 7), (1, 1, 1, 1)),
        ((4, 6, 50, 71), (1, 6, 1, 1)),
        ((300, 768), (1, 768)),
        ((300, 768), (300, 1)),
        ((20, 5003), (1, 5003)),
        ((3, 5003), (3, 1)),
        ((2000, 3), (1, 3)),
        ((2000, 3), (3,)),
    ],
)
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_inputs_stretch(
    shape: tuple[int, ...], other: tuple[int, ...], dtype: np.dtype, last: bool
) -> None:
    if last and len(shape) < 3:
        return
    x, w = normal(*shape), normal(*other).astype(dtype)
    p = Program(shape, other)
    y = p.add("sub2", p.add("mul2", 0, 1, shape=shape), 1, shape=shape)
    order = ({0}, {0}) if last else (set(), set())
    got = run("fused_elementwise", p.attributes(y), [x, w], [(shape, F32)], order)
    w = w.astype(F32)
    close(from_channels_last(got) if last else got, x * w - w)


def test_an_input_in_another_order_of_memory_is_read_right() -> None:
    x, z = normal(2, 5, 6, 7), normal(2, 5, 6, 7)
    p = Program(x.shape, z.shape)
    y = p.add("sub2", 0, 1)
    got = run("fused_elementwise", p.attributes(y), [x, z], [(x.shape, F32)], ({0}, {0}))
    close(from_channels_last(got), x - z)
    got = run("fused_elementwise", p.attributes(y), [x, z], [(x.shape, F32)], ({1}, set()))
    close(got, x - z)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint64", "bool"])
def test_integers_and_booleans_are_converted(dtype: str) -> None:
    x = normal(3000)
    m = RNG.integers(0, 2, 3000).astype(dtype)
    p = Program(x.shape, m.shape)
    y = p.add("masked_scale", 0, 1, scale=2.0)
    kept = p.add("greater_scalar", 0, val=0.0)
    outs = [(x.shape, F32), (x.shape, np.bool_)]
    got = run("fused_elementwise", p.attributes(y, kept), [x, m], outs)
    close(got[0], x * m * 2)
    assert np.array_equal(got[1], x > 0)


def test_an_output_may_be_a_number_or_an_input() -> None:
    x, s = normal(3000), np.array([2.5], F32)
    p = Program(x.shape, s.shape)
    y = p.add("mul_scalar", 1, shape=(1,), val=2.0)
    got = run("fused_elementwise", p.attributes(y, 0), [x, s], [(x.shape, F32), (x.shape, BF16)])
    assert np.array_equal(got[0], np.full(3000, 5, F32))
    assert np.array_equal(got[1], x.astype(BF16))


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_a_result_may_take_the_memory_of_an_input_read_later(dtype: np.dtype) -> None:
    x, b = normal(10001).astype(dtype), normal(10001).astype(dtype)
    p = Program(x.shape, b.shape)
    a = p.add("mul_scalar", 0, shape=x.shape, val=3.0)
    y = p.add("add2", p.add("mul2", a, 1, shape=x.shape), 0, shape=x.shape)
    attrs = p.attributes(y)
    want = run("fused_elementwise", attrs, [x, b], [(x.shape, dtype)])
    both = [(x.shape, dtype)] * 2
    assert may_overwrite("fused_elementwise", attrs, both, both[:1]) == [True, True]
    for target in (0, 1):
        got = in_place("fused_elementwise", attrs, [x.copy(), b.copy()], target)
        assert np.array_equal(got, want)
    # computed first, but x is read afterwards
    attrs = p.attributes(a)
    assert np.array_equal(
        in_place("fused_elementwise", attrs, [x.copy(), b.copy()], 0),
        run("fused_elementwise", attrs, [x, b], [(x.shape, dtype)]),
    )


def test_stretched_and_converted_inputs_are_not_overwritten() -> None:
    full, row = ((5, 6), F32), ((1, 6), F32)
    assert may_overwrite("add2", {}, [full, row], [full]) == [True, False]
    assert may_overwrite("add2", {}, [((5, 6), BF16), full], [full]) == [False, True]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_not_a_number_and_infinities() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 3e38], F32)
    y = np.float32(2.0)
    for op, want in {
        "relu": np.fmax(x, 0),
        "exp": np.exp(x.clip(-200, 88)),
        "abs": np.abs(x),
        "tanh": np.tanh(x),
        "isnan": np.isnan(x),
        "floor": np.floor(x),
        "sigmoid": 1 / (1 + np.exp(-x.clip(-80, 80).astype(np.float64))),
        "log_sigmoid": -np.logaddexp(0, -x.astype(np.float64)),
        "sinh": np.sinh(x.astype(np.float64)).astype(F32),
        "cosh": np.cosh(x.astype(np.float64)).astype(F32),
        "acos": np.arccos(x),
        "atan": np.arctan(x),
        "log": np.log(x),
    }.items():
        got = run(op, {}, [x], [(x.shape, F32)])
        if op == "exp":
            want = np.array([np.nan, np.inf, 0, 1, 1, 1, np.inf])
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-30, err_msg=op)
    got = run("maximum_scalar", {"val": float(y)}, [x], [(x.shape, F32)])
    assert np.array_equal(got, np.fmax(x, y))
    got = run("round", {}, [x], [(x.shape, F32)])
    assert np.array_equal(got, [np.nan, np.inf, -np.inf, 0, 0, 0, x[-1]], equal_nan=True)


@pytest.mark.parametrize("op", ["sin", "cos", "tan", "sinc"])
def test_large_angles(op: str) -> None:
    x = np.concatenate([10.0 ** np.arange(-3, 30), [np.inf, -np.inf, np.nan, 0]]).astype(F32)
    exact = x.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        want = {"sinc": lambda v: np.where(v == 0, 1, np.sin(v) / v)}.get(op, getattr(np, op, None))
        want = want(exact).astype(F32)
    np.testing.assert_allclose(run(op, {}, [x], [(x.shape, F32)]), want, rtol=1e-6, atol=1e-30)


def test_powers_of_every_kind_of_number() -> None:
    values = np.array(
        [0, -0.0, 1, -1, 2, -2, 0.5, 3, -3, 1e-40, 1e30, np.inf, -np.inf, np.nan], F32
    )
    x, e = (a.ravel() for a in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), e.astype(np.float64)).astype(F32)
    got = run("pow2", {}, [x, e], [(x.shape, F32)])
    np.testing.assert_allclose(got, want, rtol=3e-7, atol=1e-44)


@pytest.mark.parametrize(
    "op, low, high, ulps",
    [
        ("exp", -87, 88, 2), ("log", 1e-30, 1e30, 2), ("tanh", -10, 10, 2), ("erf", -4, 4, 2),
        ("sinh", -89, 89, 4), ("cosh", -89, 89, 4), ("asin", -1, 1, 3), ("acos", -1, 1, 2),
        ("atan", -50, 50, 3), ("asinh", -50, 50, 3), ("acosh", 1, 50, 3), ("sin", -99, 99, 2),
        ("atanh", -0.999, 0.999, 3), ("cos", -99, 99, 2), ("tan", -99, 99, 4),
        ("sinh", -1.5, 1.5, 3), ("acos", -0.6, 0.6, 3), ("sigmoid", -100, 100, 3),
        ("log_sigmoid", -80, 80, 3), ("log_sigmoid", -2, 5, 3),
    ],
)  # fmt: skip
def test_functions_are_exact_to_units_in_the_last_place(
    op: str, low: float, high: float, ulps: int
) -> None:
    special = pytest.importorskip("scipy.special")
    x = RNG.uniform(low, high, 40000).astype(F32)
    names = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh"}
    names |= {"acosh": "arccosh", "atanh": "arctanh"}
    theirs = {"erf": special.erf, "sigmoid": special.expit, "log_sigmoid": special.log_expit}
    f = theirs.get(op) or getattr(np, names.get(op, op))
    want = f(x.astype(np.float64))
    got = run(op, {}, [x], [(x.shape, F32)])
    unit = np.spacing(np.abs(want.astype(F32))).astype(np.float64)
    assert (np.abs(got - want) / unit).max() <= ulps


def test_unequal_shapes_are_named() -> None:
    p = Program((3, 4), (3, 5))
    with pytest.raises(ValueError, match=r"input 1 float32\[3, 5\] does not stretch to float32\[3"):
        run("fused_elementwise", p.attributes(p.add("add2", 0, 1)), [normal(3, 4), normal(3, 5)],
            [((3, 4), F32)])  # fmt: skip


@pytest.mark.parametrize(
    "change, message",
    [
        ({"code": (9999, 0, 0, 0)}, "unknown instruction 9999"),
        ({"code": (0, 7, 0, 0)}, "operand 7 of instruction 0 does not exist"),
        ({"code": (0, -2, 0, 0)}, "operand -2 of instruction 0 does not exist"),
        ({"outputs": (5,)}, "there is no value 5"),
        ({"outputs": (1, 1)}, "outputs has 2 numbers for 1 arrays"),
    ],
)
def test_broken_programs_are_refused(change: dict[str, object], message: str) -> None:
    p = Program((3,))
    attrs = p.attributes(p.add("exp", 0)) | change
    with pytest.raises(ValueError, match=f"fused_elementwise: {message}"):
        run("fused_elementwise", attrs, [normal(3)], [((3,), F32)])


def test_float64_is_left_to_numpy() -> None:
    x = normal(5).astype(np.float64)
    assert run("exp", {}, [x], [(x.shape, np.float64)]) is None


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    lib, x = require_library(), normal(300, 1001)
    before = lib.threads()
    results = []
    for n in (1, 2, 3):
        lib.set_threads(n)
        results.append(run("gelu", {}, [x], [(x.shape, F32)]))
    lib.set_threads(before)
    assert all(np.array_equal(r, results[0]) for r in results)


def test_ops_without_a_program_have_none() -> None:
    assert program_of("affine", {}, [(3, 4)]) is None
