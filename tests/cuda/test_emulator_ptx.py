# SPDX-License-Identifier: Apache-2.0
"""Instructions of the PTX interpreter against exact arithmetic and what NVIDIA's manual says.

Source: Parallel Thread Execution ISA, NVIDIA, version 9.0.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.cuda import ptx
from tests.cuda.exact import DTYPES, rounded, samples

pytestmark = pytest.mark.long  # the interpreter is built first, which takes a minute

if shutil.which("g++") is None:
    pytest.skip("there is no g++ to build the interpreter", allow_module_level=True)
N = 512
SHORT = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}
INTEGERS = [f"{s}{b}" for b in (16, 32, 64) for s in "us"]

HEADER = ".version 9.0\n.target sm_90\n.address_size 64\n"
TEXT = """.visible .entry f(.param .u64 y, .param .u64 a, .param .u64 b, .param .u64 c)
{{
  .reg .pred %p<4>;
  .reg .b16 %h<8>;
  .reg .b32 %r<12>;
  .reg .b64 %rd<12>;
  {declarations}
  mov.u32 %r0, %tid.x;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mad.lo.s32 %r3, %r1, %r2, %r0;
  {loads}
  {op}
  ld.param.u64 %rd0, [y];
  mad.wide.u32 %rd0, %r3, {size}, %rd0;
  st.global.b{bits} [%rd0], D;
  ret;
}}
"""


def dtype_of(name: str) -> np.dtype:
    """Of "s16", "f32" and the like."""
    names = {v: k for k, v in SHORT.items()}
    if name in names:
        return DTYPES[names[name]]
    return np.dtype(f"{'i' if name[0] == 's' else 'u'}{int(name[1:]) // 8}")


@cache
def kernel(op: str, out: int, *ins: int) -> ptx.Module:
    registers = dict(zip("DABC", (out, *ins), strict=False))
    loads = ""
    for name, size in list(registers.items())[1:]:
        loads += f"ld.param.u64 %rd1, [{name.lower()}];\n  mad.wide.u32 %rd1, %r3, {size}, %rd1;\n"
        loads += f"  ld.global.b{8 * size} {name}, [%rd1];\n  "
    declarations = " ".join(f".reg .b{max(8 * s, 16)} {n};" for n, s in registers.items())
    text = TEXT.format(op=op, declarations=declarations, loads=loads, size=out, bits=8 * out)
    return ptx.Module((HEADER + text).encode())


def apply(op: str, out: Any, *xs: np.ndarray, block: int = 64) -> np.ndarray:
    """What D is behind `op`, for registers A, B, C that hold the elements of arrays."""
    y = np.full(len(xs[0]), 0x5A, np.uint8).astype(out)
    assert len(y) % block == 0
    module = kernel(op, y.itemsize, *(x.itemsize for x in xs))
    addresses = [z.ctypes.data for z in (y, *xs)] + [0, 0]
    ranges = np.array([[z.ctypes.data, z.nbytes] for z in (y, *xs)], np.uint64)
    grid, params = (len(y) // block, 1, 1), struct.pack("=4Q", *addresses[:4])
    module.run("f", grid, (block, 1, 1), params, ranges)
    return y


def exact(xs: list[np.ndarray], f: Callable[..., Fraction], name: str, way: str) -> np.ndarray:
    rows = zip(*[x.astype(np.float64).tolist() for x in xs], strict=True)
    values = [rounded(f(*map(Fraction, row)), name, way) for row in rows]
    return np.array(values).astype(DTYPES[name])


# ---- floating point ----

FORMULAS: dict[str, tuple[int, Callable[..., Fraction]]] = {
    "add": (2, lambda a, b: a + b),
    "sub": (2, lambda a, b: a - b),
    "mul": (2, lambda a, b: a * b),
    "fma": (3, lambda a, b, c: a * b + c),
    "div": (2, lambda a, b: a / b),
    "rcp": (1, lambda a: 1 / a),
}
ARITHMETIC = [(op, n, "rn") for op in ("add", "sub", "mul", "fma") for n in SHORT]
ARITHMETIC += [
    (o, n, w) for o in FORMULAS for n in ("float32", "float64") for w in ("rz", "rm", "rp")
]
ARITHMETIC += [(o, n, "rn") for o in ("div", "rcp") for n in ("float32", "float64")]


@pytest.mark.parametrize("op,name,way", ARITHMETIC)
def test_arithmetic_is_rounded_once(op: str, name: str, way: str) -> None:
    count, f = FORMULAS[op]
    xs = [samples(name, N, seed) for seed in range(count)]
    if op in ("div", "rcp"):
        xs[-1][xs[-1] == 0] = 3
    got = apply(f"{op}.{way}.{SHORT[name]} D, {', '.join('ABC'[:count])};", DTYPES[name], *xs)
    np.testing.assert_array_equal(got, exact(xs, f, name, way))


@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize("way", ["rn", "rz", "rm", "rp"])
def test_roots_are_rounded_once(name: str, way: str) -> None:
    x = abs(samples(name, N, 3))
    y = apply(f"sqrt.{way}.{SHORT[name]} D, A;", x.dtype, x)
    below, above = np.nextafter(y, x.dtype.type(0)), np.nextafter(y, x.dtype.type(np.inf))
    for v, b, r, a in zip(*[z.tolist() for z in (x, below, y, above)], strict=True):
        lower, upper = {"rn": ((b + r) / 2, (r + a) / 2)}.get(way, (b, a))
        if name == "float64" and way == "rn":
            lower, upper = (Fraction(b) + Fraction(r)) / 2, (Fraction(r) + Fraction(a)) / 2
        assert Fraction(lower) ** 2 <= Fraction(v) <= Fraction(upper) ** 2
        assert way not in ("rz", "rm") or Fraction(r) ** 2 <= Fraction(v)
        assert way != "rp" or Fraction(r) ** 2 >= Fraction(v)


def test_subnormal_numbers_are_zeros_where_an_instruction_says_so() -> None:
    tiny = np.finfo("f4").tiny
    a = np.resize(np.array([tiny / 2, tiny, -tiny / 4, tiny * 1.5], "f4"), 64)
    b = np.resize(np.array([tiny, -tiny * 0.75, -0.0, -tiny], "f4"), 64)
    got = apply("add.ftz.f32 D, A, B;", "f4", a, b)
    want = np.resize(np.array([tiny, tiny, -0.0, 0], "f4"), 64)
    np.testing.assert_array_equal(got.view("u4"), want.view("u4"))
    np.testing.assert_array_equal(apply("add.f32 D, A, B;", "f4", a, b), a + b)
    got = apply("setp.eq.ftz.f32 %p1, A, 0f00000000; selp.u32 D, 1, 0, %p1;", "u4", a)
    np.testing.assert_array_equal(got, np.abs(a) < tiny)


def test_results_that_are_no_numbers_are_one_pattern() -> None:
    x = np.resize(np.array([np.inf, np.nan, -np.nan, 0], "f4"), 64)
    got = apply("mul.f32 D, A, 0f00000000;", "f4", x).view("u4")
    np.testing.assert_array_equal(got, np.resize([0x7FFFFFFF] * 3 + [0], 64))


def test_saturation_gives_numbers_between_0_and_1() -> None:
    a = np.resize(np.array([-1, 0.25, 3, np.nan], "f4"), 64)
    got = apply("add.sat.f32 D, A, 0f3E800000;", "f4", a)
    np.testing.assert_array_equal(got, np.resize([0, 0.5, 1, 0], 64))
    h = a.astype("f2")
    got = apply("fma.rn.sat.f16 D, A, A, A;", "f2", h)
    np.testing.assert_array_equal(got, np.resize([0, 0.3125, 1, 0], 64).astype("f2"))


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("op", ["min", "max"])
def test_minimum_and_maximum_know_what_is_no_number(op: str, name: str) -> None:
    values = np.array([1, -2, 0, -0.0, np.nan, np.inf])
    a, b = np.resize(np.repeat(values, 6), 64), np.resize(np.tile(values, 6), 64)
    xs = [x.astype(DTYPES[name]) for x in (a, b)]
    ignoring = {"min": np.fmin, "max": np.fmax}[op](a, b)
    zeros = (a == 0) & (b == 0)
    signs = np.signbit(a) | np.signbit(b) if op == "min" else np.signbit(a) & np.signbit(b)
    ignoring[zeros] = np.where(signs[zeros], -0.0, 0.0)
    got = apply(f"{op}.{SHORT[name]} D, A, B;", DTYPES[name], *xs).astype(float)
    np.testing.assert_array_equal(got, ignoring)
    np.testing.assert_array_equal(np.signbit(got)[zeros], np.signbit(ignoring)[zeros])
    if name != "float64":
        got = apply(f"{op}.NaN.{SHORT[name]} D, A, B;", DTYPES[name], *xs).astype(float)
        want = np.where(np.isnan(a + b) & (np.isnan(a) | np.isnan(b)), np.nan, ignoring)
        np.testing.assert_array_equal(got, want)


APPROXIMATE = {
    "ex2.approx.ftz.f32": np.exp2, "lg2.approx.f32": np.log2, "sin.approx.f32": np.sin,
    "cos.approx.f32": np.cos, "tanh.approx.f32": np.tanh, "rsqrt.approx.f32": lambda x: x**-0.5,
    "rcp.approx.ftz.f32": lambda x: 1 / x, "sqrt.approx.f32": np.sqrt,
}  # fmt: skip


@pytest.mark.parametrize("op", APPROXIMATE)
def test_approximations_are_near(op: str) -> None:
    x = np.random.default_rng(1).uniform(0.1, 3, 64).astype("f4")
    want = APPROXIMATE[op](x.astype("f8"))
    np.testing.assert_allclose(apply(f"{op} D, A;", "f4", x), want, rtol=2e-6, atol=1e-7)


def test_gross_reciprocals_of_float64_have_32_bits() -> None:
    x = np.random.default_rng(1).uniform(0.1, 3, 64)
    got = apply("rcp.approx.ftz.f64 D, A;", "f8", x)
    np.testing.assert_allclose(got, 1 / x, rtol=2**-19)
    assert not (got.view("u8") & 0xFFFFFFFF).any()


@pytest.mark.parametrize("op", ["add", "mul", "fma"])
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_pairs_of_16_bits_are_two_numbers(op: str, name: str) -> None:
    count, f = FORMULAS[op]
    xs = [samples(name, N, seed) for seed in range(count)]
    pairs = [x.view("u4") for x in xs]
    op = f"{op}.rn.{SHORT[name]}x2 D, {', '.join('ABC'[:count])};"
    got = apply(op, "u4", *pairs).view(DTYPES[name])
    np.testing.assert_array_equal(got, exact(xs, f, name, "rn"))


# ---- conversions ----


@pytest.mark.parametrize("way", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize(
    "to,of",
    [
        ("float32", "float64"),
        ("float16", "float32"),
        ("bfloat16", "float32"),
        ("float16", "float64"),
    ],
)
def test_narrowing_rounds_as_it_says(to: str, of: str, way: str) -> None:
    if way in ("rm", "rp") and to != "float32":
        way = {"rm": "rz", "rp": "rn"}[way]  # there are no others
    x = samples(of, N, 5)
    near = (samples(to, N, 6).astype(DTYPES[of]) * (1 + 2.0**-9)).astype(DTYPES[of])
    x = np.where(np.arange(N) % 2, x, np.nan_to_num(near))
    got = apply(f"cvt.{way}.{SHORT[to]}.{SHORT[of]} D, A;", DTYPES[to], x)
    np.testing.assert_array_equal(got, exact([x], lambda a: a, to, way))


@pytest.mark.parametrize("to", INTEGERS)
@pytest.mark.parametrize("of", ["float16", "float32", "float64"])
def test_integers_of_floats_are_rounded_and_clamped(to: str, of: str) -> None:
    limits = np.iinfo(dtype_of(to))
    x = samples(of, N - 4, 7)
    x = np.concatenate([x, np.array([np.inf, -np.inf, 2.5, -3.5], x.dtype)])
    for way, f in (("rni", np.round), ("rzi", np.trunc), ("rmi", np.floor), ("rpi", np.ceil)):
        got = apply(f"cvt.{way}.{to}.{SHORT[of]} D, A;", dtype_of(to), x)
        whole = [v if np.isinf(v) else int(v) for v in f(x.astype("f8")).tolist()]
        want = [int(min(max(v, limits.min), limits.max)) for v in whole]
        assert got.tolist() == want
    got = apply(f"cvt.rzi.{to}.{SHORT[of]} D, A;", dtype_of(to), np.full(64, np.nan, x.dtype))
    bits = limits.bits
    top = 1 << bits - 1 if to[0] == "u" else limits.min
    assert (got == (top if of == "float64" or bits == 64 else 0)).all()


@pytest.mark.parametrize("of", INTEGERS)
@pytest.mark.parametrize("to", ["float16", "bfloat16", "float32", "float64"])
def test_floats_of_integers_are_rounded_once(to: str, of: str) -> None:
    limits, t = np.iinfo(dtype_of(of)), DTYPES[to]
    rng = np.random.default_rng(8)
    x = rng.integers(limits.min, limits.max, N, dtype_of(of), endpoint=True)
    x[::2] >>= rng.integers(0, limits.bits, N // 2).astype(x.dtype)
    for way in ("rn",) if t.itemsize == 2 else ("rn", "rz", "rm", "rp"):
        got = apply(f"cvt.{way}.{SHORT[to]}.{of} D, A;", t, x)
        want = [rounded(Fraction(v), to, way) for v in x.tolist()]
        np.testing.assert_array_equal(got, np.array(want).astype(t))


@pytest.mark.parametrize("of", INTEGERS)
@pytest.mark.parametrize("to", [*INTEGERS, "u8", "s8"])
def test_integers_of_integers_wrap_or_are_clamped(to: str, of: str) -> None:
    limits, t = np.iinfo(dtype_of(to)), dtype_of(to)
    x = np.random.default_rng(9).integers(0, 1 << 64, 64, np.uint64).astype(dtype_of(of))
    x[::2] >>= np.iinfo(x.dtype).bits // 2 + 3
    np.testing.assert_array_equal(apply(f"cvt.{to}.{of} D, A;", t, x), x.astype(t))
    want = [min(max(v, limits.min), limits.max) for v in x.tolist()]
    assert apply(f"cvt.sat.{to}.{of} D, A;", t, x).tolist() == want


def test_narrow_integers_fill_wide_registers_with_their_sign() -> None:
    x = np.arange(64, dtype="u4") * 5
    wide = apply("cvt.s8.u32 %r5, A; cvt.s64.s32 D, %r5;", "i8", x)
    np.testing.assert_array_equal(wide, x.astype("i1"))


def test_two_floats_become_a_pair() -> None:
    a, b = samples("float32", N, 1), samples("float32", N, 2)
    for name in ("float16", "bfloat16"):
        got = apply(f"cvt.rn.{SHORT[name]}x2.f32 D, A, B;", "u4", a, b).view(DTYPES[name])
        with np.errstate(over="ignore"):
            want = np.stack([b, a], 1).astype(DTYPES[name]).reshape(-1)
        np.testing.assert_array_equal(got, want)
        got = apply(f"cvt.rn.relu.{SHORT[name]}x2.f32 D, A, B;", "u4", a, b).view(DTYPES[name])
        np.testing.assert_array_equal(got, np.maximum(want, DTYPES[name].type(0)))


# ---- comparisons ----

COMPARED = np.array([0, -0.0, 1, -1.5, np.inf, -np.inf, np.nan, 1])
ORDERS = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
          "gt": np.greater, "ge": np.greater_equal}  # fmt: skip


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("order", [*ORDERS, *(f"{o}u" for o in ORDERS), "num", "nan"])
def test_comparisons_know_what_is_no_number(order: str, name: str) -> None:
    a, b = np.repeat(COMPARED, 8), np.tile(COMPARED, 8)
    unordered = np.isnan(a) | np.isnan(b)
    if order in ("num", "nan"):
        want = unordered == (order == "nan")
    else:
        want = ORDERS[order[:2]](a, b) & ~unordered | (unordered & (len(order) == 3))
    xs = [x.astype(DTYPES[name]) for x in (a, b)]
    op = f"setp.{order}.{SHORT[name]} %p1, A, B; selp.u32 D, 1, 0, %p1;"
    np.testing.assert_array_equal(apply(op, "u4", *xs), want)


@pytest.mark.parametrize(
    "join,f", [("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor)]
)
def test_comparisons_join_another_predicate(join: str, f: Any) -> None:
    a, b = (np.random.default_rng(s).integers(-3, 3, 64, "i4") for s in (1, 2))
    op = f"""setp.lt.s32 %p0, A, 0; setp.ge.{join}.s32 %p1|%p2, A, B, !%p0;
        selp.u32 %r5, 1, 0, %p1; selp.u32 %r6, 2, 0, %p2; or.b32 D, %r5, %r6;"""
    want = f(a >= b, a >= 0) + 2 * f(a < b, a >= 0)
    np.testing.assert_array_equal(apply(op, "u4", a, b), want)
    got = apply(f"setp.lt.s32 %p0, A, 0; set.ge.{join}.f32.s32 D, A, B, %p0;", "f4", a, b)
    np.testing.assert_array_equal(got, f(a >= b, a < 0))


def test_selections() -> None:
    a, b = np.arange(64, dtype="i8"), np.arange(64, dtype="i8") * -7
    got = apply("setp.hi.u64 %p1, A, 9; selp.b64 D, A, B, %p1;", "i8", a, b)
    np.testing.assert_array_equal(got, np.where(a > 9, a, b))
    c = np.where(np.arange(64) % 3, 1.0, -2.0).astype("f4")
    got = apply("slct.s64.f32 D, A, B, C;", "i8", a, b, c)
    np.testing.assert_array_equal(got, np.where(c >= 0, a, b))
