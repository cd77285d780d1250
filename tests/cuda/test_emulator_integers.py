# SPDX-License-Identifier: Apache-2.0
"""Integers, bits and atomic operations of the PTX interpreter, against Python's integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.cuda.test_emulator_ptx import INTEGERS, apply, dtype_of

pytestmark = pytest.mark.long  # the interpreter is built first, which takes a minute

U4, U8 = np.dtype("u4"), np.dtype("u8")
MANY = 256


def words(dtype: np.dtype, seed: int, n: int = MANY) -> np.ndarray:
    """Numbers of all lengths, with those at the edges."""
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    x = rng.integers(limits.min, limits.max, n, dtype, endpoint=True)
    x >>= rng.integers(0, limits.bits, n).astype(dtype)
    edges = np.array([limits.min, limits.max, 0, 1, 2, limits.max - 1], dtype)
    x[rng.integers(0, n, n // 4)] = rng.choice(edges, n // 4)
    return x


def wrapped(values: list[int], dtype: np.dtype) -> np.ndarray:
    bits = 8 * dtype.itemsize
    return np.array([v % (1 << bits) for v in values], f"u{dtype.itemsize}").view(dtype)


def quotient(a: int, b: int) -> int:  # towards zero; by zero all ones
    return -1 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def bits_of(x: int, dtype: np.dtype) -> int:
    return int(x) % (1 << 8 * dtype.itemsize)


INTEGER_OPS: dict[str, Callable[..., int]] = {
    "add.{t} D, A, B;": lambda a, b, c, n: a + b,
    "sub.{t} D, A, B;": lambda a, b, c, n: a - b,
    "mul.lo.{t} D, A, B;": lambda a, b, c, n: a * b,
    "mul.hi.{t} D, A, B;": lambda a, b, c, n: (a * b) >> n,
    "mad.lo.{t} D, A, B, C;": lambda a, b, c, n: a * b + c,
    "mad.hi.{t} D, A, B, C;": lambda a, b, c, n: ((a * b) >> n) + c,
    "sad.{t} D, A, B, C;": lambda a, b, c, n: abs(a - b) + c,
    "div.{t} D, A, B;": lambda a, b, c, n: quotient(a, b),
    "rem.{t} D, A, B;": lambda a, b, c, n: a - b * quotient(a, b) if b else a,
    "min.{t} D, A, B;": lambda a, b, c, n: min(a, b),
    "max.{t} D, A, B;": lambda a, b, c, n: max(a, b),
}


@pytest.mark.parametrize("t", INTEGERS)
@pytest.mark.parametrize("op", INTEGER_OPS)
def test_integers(op: str, t: str) -> None:
    dtype, f = dtype_of(t), INTEGER_OPS[op]
    xs = [words(dtype, seed) for seed in range(3)]
    rows = zip(*[x.tolist() for x in xs], strict=True)
    want = wrapped([f(*row, 8 * dtype.itemsize) for row in rows], dtype)
    np.testing.assert_array_equal(apply(op.format(t=t), dtype, *xs), want)


@pytest.mark.parametrize("t,wide", [("u16", "u4"), ("s16", "i4"), ("u32", "u8"), ("s32", "i8")])
def test_wide_products(t: str, wide: str) -> None:
    a, b, c = words(dtype_of(t), 1), words(dtype_of(t), 2), words(np.dtype(wide), 3)
    product = a.astype(wide) * b.astype(wide)
    np.testing.assert_array_equal(apply(f"mul.wide.{t} D, A, B;", wide, a, b), product)
    np.testing.assert_array_equal(apply(f"mad.wide.{t} D, A, B, C;", wide, a, b, c), product + c)


@pytest.mark.parametrize("t", ["s16", "s32", "s64"])
def test_signs(t: str) -> None:
    x = words(dtype_of(t), 4)
    np.testing.assert_array_equal(apply(f"neg.{t} D, A;", x.dtype, x), -x)
    np.testing.assert_array_equal(apply(f"abs.{t} D, A;", x.dtype, x), np.abs(x))


def test_sums_that_stay_in_range() -> None:
    a, b = words(np.dtype("i4"), 1), words(np.dtype("i4"), 2)
    for op, f in (("add", np.add), ("sub", np.subtract)):
        want = np.clip(f(a.astype("i8"), b.astype("i8")), -(1 << 31), (1 << 31) - 1)
        np.testing.assert_array_equal(apply(f"{op}.sat.s32 D, A, B;", "i4", a, b), want)


def test_carries_reach_the_next_word() -> None:
    a, b = words(U8, 1), words(U8, 2)
    split = "mov.b64 {%r4, %r5}, A; mov.b64 {%r6, %r7}, B; "
    join = " mov.b64 D, {%r8, %r9};"
    op = split + "add.cc.u32 %r8, %r4, %r6; addc.u32 %r9, %r5, %r7;" + join
    np.testing.assert_array_equal(apply(op, U8, a, b), a + b)
    op = split + "sub.cc.u32 %r8, %r4, %r6; subc.u32 %r9, %r5, %r7;" + join
    np.testing.assert_array_equal(apply(op, U8, a, b), a - b)
    op = (
        split
        + """mul.lo.u32 %r8, %r4, %r6; mul.hi.u32 %r9, %r4, %r6;
        mad.lo.cc.u32 %r9, %r4, %r7, %r9; madc.hi.u32 %r10, %r4, %r7, 0;
        mad.lo.u32 %r9, %r5, %r6, %r9;"""
        + join
    )
    np.testing.assert_array_equal(apply(op, U8, a, b), a * b)


def test_products_of_24_bits_and_of_bytes() -> None:
    a, b, c = (words(U4, s) for s in range(3))
    low = [(x & 0xFFFFFF).astype("u8") for x in (a, b)]
    np.testing.assert_array_equal(
        apply("mul24.lo.u32 D, A, B;", U4, a, b), (low[0] * low[1]).astype(U4)
    )
    got = apply("mad24.hi.u32 D, A, B, C;", U4, a, b, c)
    np.testing.assert_array_equal(got, (low[0] * low[1] >> np.uint64(16)).astype(U4) + c)
    x, y = a.view("i1").reshape(-1, 4), b.view("u1").reshape(-1, 4)
    want = (x.astype("i4") * y.astype("i4")).sum(1, dtype="i4").view(U4) + c
    np.testing.assert_array_equal(apply("dp4a.s32.u32 D, A, B, C;", U4, a, b, c), want)
    z = a.view("i2").reshape(-1, 2).astype("i4") * y[:, 2:].astype("i4")
    want = z.sum(1, dtype="i4").view(U4) + c
    np.testing.assert_array_equal(apply("dp2a.hi.s32.u32 D, A, B, C;", U4, a, b, c), want)


# ---- bits ----


@pytest.mark.parametrize("t", INTEGERS)
def test_shifts_by_more_than_there_is_give_zeros_or_signs(t: str) -> None:
    x, n = (
        words(dtype_of(t), 1),
        np.resize(np.array([0, 1, 7, 15, 16, 31, 32, 63, 64, 200], U4), MANY),
    )
    want = [v >> k for v, k in zip(x.tolist(), n.tolist(), strict=True)]
    np.testing.assert_array_equal(apply(f"shr.{t} D, A, B;", x.dtype, x, n), wrapped(want, x.dtype))
    want = [v << k for v, k in zip(x.tolist(), n.tolist(), strict=True)]
    op = f"shl.b{t[1:]} D, A, B;"
    np.testing.assert_array_equal(apply(op, x.dtype, x, n), wrapped(want, x.dtype))


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_logic(bits: int) -> None:
    a, b = words(np.dtype(f"u{bits // 8}"), 1), words(np.dtype(f"u{bits // 8}"), 2)
    for op, f in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
        np.testing.assert_array_equal(apply(f"{op}.b{bits} D, A, B;", a.dtype, a, b), f(a, b))
    np.testing.assert_array_equal(apply(f"not.b{bits} D, A;", a.dtype, a), ~a)


@pytest.mark.parametrize("bits", [32, 64])
def test_counts_of_bits(bits: int) -> None:
    x = words(np.dtype(f"u{bits // 8}"), 1)
    texts = [f"{v:0{bits}b}" for v in x.tolist()]
    lengths = np.array([v.bit_length() for v in x.tolist()])
    assert apply(f"popc.b{bits} D, A;", U4, x).tolist() == [t.count("1") for t in texts]
    np.testing.assert_array_equal(apply(f"clz.b{bits} D, A;", U4, x), bits - lengths)
    assert apply(f"brev.b{bits} D, A;", x.dtype, x).tolist() == [int(t[::-1], 2) for t in texts]
    find = apply(f"bfind.u{bits} D, A;", "i4", x)
    np.testing.assert_array_equal(find, lengths - 1)
    signed = x.view(f"i{bits // 8}")
    lengths = np.array([(~v if v < 0 else v).bit_length() for v in signed.tolist()])
    np.testing.assert_array_equal(apply(f"bfind.s{bits} D, A;", "i4", x), lengths - 1)
    amounts = np.where(lengths, bits - lengths, -1)
    np.testing.assert_array_equal(apply(f"bfind.shiftamt.s{bits} D, A;", "i4", x), amounts)


@pytest.mark.parametrize("t", ["u32", "s32", "u64", "s64"])
def test_fields_of_bits(t: str) -> None:
    x = words(dtype_of(t), 1)
    bits, rng = 8 * x.itemsize, np.random.default_rng(2)
    start, length = (rng.integers(0, bits + 9, MANY).astype(U4) for _ in range(2))

    def extract(v: int, b: int, n: int) -> int:  # word for word what the manual has
        word = bits_of(v, x.dtype)
        sign = (word >> min(b + n - 1, bits - 1)) & 1 if t[0] == "s" and n else 0
        return sum(
            ((word >> (b + k)) & 1 if k < n and b + k < bits else sign) << k for k in range(bits)
        )

    rows = list(zip(x.tolist(), start.tolist(), length.tolist(), strict=True))
    got = apply(f"bfe.{t} D, A, B, C;", x.dtype, x, start, length)
    np.testing.assert_array_equal(got, wrapped([extract(*r) for r in rows], x.dtype))

    def insert(v: int, b: int, n: int) -> int:
        mask = (((1 << n) - 1) << b) % (1 << bits)
        return (bits_of(~v, x.dtype) & ~mask) | ((bits_of(v, x.dtype) << b) & mask)

    got = apply(f"not.b{bits} D, A; bfi.b{bits} D, A, D, B, C;", x.dtype, x, start, length)
    np.testing.assert_array_equal(got, wrapped([insert(*r) for r in rows], x.dtype))


def test_funnels_join_two_words() -> None:
    a, b = words(U4, 1), words(U4, 2)
    n = np.resize(np.arange(40, dtype=U4), MANY)
    both = b.astype(U8) << np.uint64(32) | a
    for mode, k in (("wrap", n % 32), ("clamp", np.minimum(n, 32))):
        shift = k.astype(U8)
        want = (both << shift >> np.uint64(32)).astype(U4)
        np.testing.assert_array_equal(apply(f"shf.l.{mode}.b32 D, A, B, C;", U4, a, b, n), want)
        want = (both >> shift).astype(U4)
        np.testing.assert_array_equal(apply(f"shf.r.{mode}.b32 D, A, B, C;", U4, a, b, n), want)


@pytest.mark.parametrize("table", [0x80, 0xFE, 0x96, 0xD8, 0x1B])
def test_logic_of_three(table: int) -> None:
    a, b, c = (words(U4, s) for s in range(3))
    want = np.zeros(MANY, U4)
    for k in range(32):
        index = (a >> k & 1) << 2 | (b >> k & 1) << 1 | (c >> k & 1)
        want |= (np.uint32(table) >> index & 1) << np.uint32(k)
    np.testing.assert_array_equal(apply(f"lop3.b32 D, A, B, C, {table};", U4, a, b, c), want)


def test_permutations_of_bytes() -> None:
    a, b, c = (words(U4, s) for s in range(3))
    rows = list(zip(a.tolist(), b.tolist(), c.tolist(), strict=True))

    def permuted(x: int, y: int, selector: int) -> int:
        r = 0
        for k in range(4):
            which = selector >> 4 * k & 15
            byte = (y << 32 | x) >> 8 * (which & 7) & 255
            r |= (byte if which < 8 else 255 * (byte >> 7)) << 8 * k
        return r

    got = apply("prmt.b32 D, A, B, C;", U4, a, b, c).tolist()
    assert got == [permuted(*r) for r in rows]
    for mode, sequences in {
        "f4e": ["3210", "4321", "5432", "6543"], "b4e": ["5670", "6701", "7012", "0123"],
        "rc8": ["0000", "1111", "2222", "3333"], "ecl": ["3210", "3211", "3222", "3333"],
        "ecr": ["0000", "1110", "2210", "3210"], "rc16": ["1010", "3232", "1010", "3232"],
    }.items():  # fmt: skip
        got = apply(f"prmt.b32.{mode} D, A, B, C;", U4, a, b, c).tolist()
        assert got == [permuted(x, y, int(sequences[z & 3], 16)) for x, y, z in rows]


def test_the_nth_bit_and_masks() -> None:
    x = words(U4, 1)
    nth = apply("fns.b32 D, A, 0, 2;", U4, x)
    places = [[k for k in range(32) if v >> k & 1] for v in x.tolist()]
    assert nth.tolist() == [p[1] if len(p) > 1 else 0xFFFFFFFF for p in places]
    n = np.arange(64, dtype=U4)
    got = apply("bmsk.clamp.b32 D, 3, A;", U4, n).tolist()
    assert got == [((1 << k) - 1 << 3) % (1 << 32) for k in n.tolist()]
    got = apply("szext.clamp.s32 D, B, A;", "i4", n, np.full(64, 0x8F, U4))
    assert got[[0, 4, 7, 8, 9]].tolist() == [0, -1, 15, 0x8F - 256, 0x8F]


def test_parts_of_registers() -> None:
    a, b = words(U8, 1), words(U8, 2)
    op = "mov.b64 {%r4, %r5}, A; mov.b32 {%h1, %h2}, %r4; mov.b32 %r4, {%h2, %h1}; "
    op += "mov.b64 D, {%r5, %r4};"
    want = a.view("u2").reshape(-1, 4)[:, [2, 3, 1, 0]]
    np.testing.assert_array_equal(apply(op, U8, a, b).view("u2").reshape(-1, 4), want)


# ---- atomic operations ----

ATOMIC: dict[str, tuple[Any, Callable[[list[int]], int]]] = {
    "add.u32": (U4, sum), "add.u64": (U8, sum), "min.s32": (np.dtype("i4"), min),
    "max.u32": (U4, max), "max.s64": (np.dtype("i8"), max), "min.u64": (U8, min),
    "or.b32": (U4, lambda v: int(np.bitwise_or.reduce(v))),
    "xor.b64": (U8, lambda v: int(np.bitwise_xor.reduce(np.array(v, U8)))),
}  # fmt: skip


@pytest.mark.parametrize("op", ATOMIC)
def test_atomic_operations_lose_nothing(op: str) -> None:
    dtype, f = ATOMIC[op]
    x = words(dtype, 1, 128)
    memory = np.zeros(1, dtype)
    at = np.full(128, memory.ctypes.data, U8)
    old = apply_with(memory, f"atom.global.{op} D, [B], A;", dtype, x, at)
    assert memory[0] == wrapped([f([0, *x.tolist()])], dtype)[0]
    assert old[0] == 0
    np.testing.assert_array_equal(old[1], wrapped([f([0, int(x[0])])], dtype)[0])
    again = np.zeros(1, dtype)
    at = np.full(128, again.ctypes.data, U8)
    apply_with(again, f"red.{op} [B], A; mov.b{8 * dtype.itemsize} D, A;", dtype, x, at)
    assert again[0] == memory[0]


def apply_with(memory: np.ndarray, op: str, out: Any, *xs: np.ndarray) -> np.ndarray:
    """As apply, with an array that addresses are in."""
    from tests.cuda import test_emulator_ptx as emulator

    y = np.zeros(len(xs[0]), out)
    module = emulator.kernel(op, y.itemsize, *(x.itemsize for x in xs))
    addresses = ([z.ctypes.data for z in (y, *xs)] + [0, 0])[:4]
    ranges = np.array([[z.ctypes.data, z.nbytes] for z in (y, *xs, memory)], np.uint64)
    params = np.array(addresses, U8).tobytes()
    module.run("f", (len(y) // 64, 1, 1), (64, 1, 1), params, ranges)
    return y


def test_atomic_sums_of_floats() -> None:
    for op, dtype in (("add.f32", "f4"), ("add.f64", "f8"), ("add.noftz.f16", "f2")):
        memory = np.zeros(2, dtype)
        x = np.arange(64).astype(dtype)
        at = np.full(64, memory.ctypes.data, U8)
        old = apply_with(memory, f"atom.global.{op} D, [B], A;", dtype, x, at)
        np.testing.assert_array_equal(old, np.cumsum(x) - x)
        assert memory[0] == x.sum()


def test_exchanges_and_counters() -> None:
    memory, x = np.zeros(1, U4), np.arange(64, dtype=U4)
    at = np.full(64, memory.ctypes.data, U8)
    old = apply_with(memory, "atom.exch.b32 D, [B], A;", U4, x, at)
    np.testing.assert_array_equal(old, np.r_[0, x[:-1]])
    memory[0] = 0
    old = apply_with(memory, "atom.cas.b32 D, [B], A, 7;", U4, x, at)
    np.testing.assert_array_equal(old, np.r_[0, [7] * 63])
    old = apply_with(memory, "atom.inc.u32 D, [B], 9;", U4, x, at)
    np.testing.assert_array_equal(old, (7 + np.arange(64)) % 10)
    memory[0] = 1
    old = apply_with(memory, "atom.dec.u32 D, [B], 5;", U4, x, at)
    np.testing.assert_array_equal(old, (1 - np.arange(64)) % 6)
