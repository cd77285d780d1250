# SPDX-License-Identifier: Apache-2.0
"""Programs, reductions and copies in shapes that take several blocks, odd sizes and mixed types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnl.ext.device.kernels  # noqa: F401  registers the setups
from nnl.core.ops.elementwise import NAMES, Writer
from nnl.ext.device.kernels.elementwise_codes import TEXTS
from nnl.ext.device.kernels.module import SETUPS, divisor
from nnl.ext.device.kernels.patterns import Space, split
from nnl.ext.device.registry import Operand
from tests.cuda import kernels
from tests.native.kernels import BF16, F16, F32, assert_close

pytestmark = pytest.mark.usefixtures("machine")


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def program(inputs: int, *steps: tuple[Any, ...]) -> dict[str, Any]:
    """Attributes of fused_elementwise; the output is the last value."""
    w = Writer([()] * inputs)
    last = 0
    for code, *values in steps:
        last = w(code, *(w.number(v) if isinstance(v, float) else v for v in values))
    return {"code": tuple(w.code), "constants": tuple(w.constants), "outputs": (last,)}


def test_every_code_has_a_text_in_order() -> None:
    assert tuple(TEXTS) == NAMES


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 25, 32, 641, 1023, 65537, 2**31 - 1])
def test_division_by_a_product_is_exact(n: int) -> None:
    first, shift = divisor(n)
    factor = first >> 32
    for value in {0, 1, n - 1, n, n + 1, 7 * n - 1, 7 * n, 2**31 - 1, 2**31 - n}:
        if 0 <= value < 2**31:
            assert ((factor * value >> 32) + value) >> shift == value // n


def test_a_space_is_split_by_what_is_reduced() -> None:
    images = Space.of((8, 64, 7, 7), channels_last=True)
    found = split(images, (0, 2, 3))
    assert found is not None
    assert (found.groups, found.reduced, found.k2) == (64, 392, 64)
    assert split(Space.of((2, 3, 2, 3, 2, 3)), (0, 2, 4)) is None


MIXED = [(F32, F32, F32), (BF16, F32, BF16), (F16, BF16, F32)]


@pytest.mark.parametrize("types", MIXED, ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_arrays_stretch_in_either_order(types: tuple[Any, ...], last: bool) -> None:
    """x times a number for each channel plus one for each sample and row."""
    a, b, y = types
    x, scale = normal(3, 16, 5, 7).astype(a), normal(1, 16, 1, 1, seed=1).astype(b)
    row = normal(3, 1, 5, 1, seed=2).astype(a)
    attrs = program(3, ("multiply_add", 0, 1, 2))
    positions = ({0, 1, 2}, {0}) if last else (set(), set())
    want = x.astype(np.float32) * scale.astype(np.float32) + row.astype(np.float32)
    given, outs = [x, scale, row], [(x.shape, y)]
    for (got,) in [
        kernels.run("fused_elementwise", attrs, given, outs, positions, offset) for offset in (0, 3)
    ]:
        assert_close(got, want, y if y != F32 else (b if b != F32 else F32), "")


def test_arrays_of_different_orders_meet() -> None:
    x, z = normal(2, 8, 6, 5), normal(2, 8, 6, 5, seed=1)
    attrs = program(2, ("subtract", 0, 1))
    (got,) = kernels.run("fused_elementwise", attrs, [x, z], [(x.shape, F32)], ({1}, {0}))
    np.testing.assert_array_equal(got, x - z)


def test_a_program_writes_over_its_input() -> None:
    x, z = normal(1003), normal(1003, seed=1)
    attrs = program(2, ("add", 0, 1), ("relu", 2))
    (got,) = kernels.run("fused_elementwise", attrs, [x, z], [(x.shape, F32)], overwrite={0: 1})
    np.testing.assert_array_equal(got, np.maximum(x + z, 0))


def test_conversion_rounds_to_even() -> None:
    x = np.arange(1 << 16, dtype=np.uint32).astype(np.uint32) << 8
    x = x.view(np.float32)[np.isfinite(x.view(np.float32))].copy()
    for dtype in (BF16, F16):
        with np.errstate(over="ignore"):
            want = x.astype(dtype)
        for op, attrs in (("cast", {"dtype": np.dtype(dtype).name}), ("to_layout", {})):
            (got,) = kernels.run(op, attrs, [x], [(x.shape, dtype)])
            np.testing.assert_array_equal(got.view(np.uint16), want.view(np.uint16))
        (got,) = kernels.run("identity", {}, [x], [(x.shape, dtype)])
        np.testing.assert_array_equal(got.view(np.uint16), want.view(np.uint16))


REDUCED = [
    ((70, 700), (0,)),
    ((9, 704), (1,)),
    ((3, 10, 900), (0, 2)),
    ((5, 6, 7, 8), (0, 2, 3)),
    ((5, 6, 7, 8), (1, 3)),
    ((40000,), (0,)),
    ((2, 300, 3), (1,)),
    ((9000, 2), (0,)),
]


@pytest.mark.parametrize("shape,axes", REDUCED)
@pytest.mark.parametrize("dtype", [F32, pytest.param(BF16, marks=pytest.mark.long)], ids=str)
def test_reductions_equal_numpy(shape: tuple[int, ...], axes: tuple[int, ...], dtype: Any) -> None:
    x = normal(*shape).astype(dtype)
    wide = x.astype(np.float64)
    want = {"sum": wide.sum(axes), "mean": wide.mean(axes), "max": wide.max(axes),
            "min": wide.min(axes)}  # fmt: skip
    attrs, outs = {"axes": axes, "keep_dims": False}, [(want["sum"].shape, F32)]

    def run_all() -> Any:
        return [
            (op, kernels.run(op, attrs, [x], outs, offset=offset))
            for op in want
            for offset in (0, 1)
        ]

    results = run_all()
    for op, (got,) in results:
        scale = max(1.0, float(np.abs(wide).sum(axes).max())) if op == "sum" else 1.0
        np.testing.assert_allclose(got / scale, want[op] / scale, rtol=0, atol=2e-6)
    (again,) = kernels.run("sum", attrs, [x], outs)
    np.testing.assert_array_equal(results[0][1][0], again)  # in whatever order threads run


def test_nan_is_the_largest_and_the_smallest() -> None:
    x = normal(3, 500)
    x[1, 77] = np.nan
    for op, numpy_op in (("max", np.max), ("min", np.min)):
        (got,) = kernels.run(op, {"axes": (1,), "keep_dims": False}, [x], [((3,), F32)])
        np.testing.assert_array_equal(got, numpy_op(x, 1))


@pytest.mark.parametrize(
    "shape,axes", [((5, 700), (1,)), ((40, 300), (0,)), ((3, 40, 5, 7), (1, 3))]
)
def test_places_are_those_of_the_first_of_equal_elements(shape: Any, axes: Any) -> None:
    x = np.random.default_rng(0).integers(0, 30, shape).astype(np.float32)
    x.reshape(-1)[17] = np.nan
    kept = [a for a in range(x.ndim) if a not in axes]
    flat = x.transpose(*kept, *axes).reshape(*[shape[a] for a in kept], -1)
    outs = [(flat.shape[:-1], F32), (flat.shape[:-1], np.uint64)]
    attrs = {"axes": axes, "keep_dims": False, "with_index": True}
    for op, choose in (("max", np.argmax), ("min", np.argmin)):
        y, place = kernels.run(op, attrs, [x], outs)
        np.testing.assert_array_equal(place, choose(flat, -1))
        np.testing.assert_array_equal(y, getattr(np, op)(flat, -1))
        only = {**attrs, "with_index": False, "only_index": True}
        (place,) = kernels.run(op, only, [x], outs[1:])
        np.testing.assert_array_equal(place, choose(flat, -1))


@pytest.mark.parametrize("last", [False, True])
def test_a_program_sums_what_it_computes(last: bool) -> None:
    """The masked gradient, its sum over all but channels, and the mean of its product with x."""
    x, g = normal(4, 24, 9, 10), normal(4, 24, 9, 10, seed=1)
    w = Writer([(), ()])
    gated = w("gate_greater", 0, 1, w.number(0.0))
    product = w("multiply", gated, 1)
    attrs = {
        "code": tuple(w.code), "constants": tuple(w.constants), "outputs": (gated, gated, product),
        "shape": x.shape, "axes": (0, 2, 3), "channels_last": last, "reductions": (0, 1, 1),
        "scales": (1.0, 1.0, 1.0 / 360),
    }  # fmt: skip
    outs = [(x.shape, F32), ((24,), F32), ((24,), BF16)]
    positions = ({0, 1}, {0}) if last else (set(), set())
    masked, total, mean = kernels.run("fused_elementwise", attrs, [g, x], outs, positions)
    want = g * (x > 0)
    np.testing.assert_array_equal(masked, want)
    assert_close(total, want.sum((0, 2, 3)), F32, "sum")
    assert_close(mean, (want * x).mean((0, 2, 3)), BF16, "mean")


def test_a_large_sum_is_shared_by_blocks() -> None:
    kernel = kernels.find("sum", {"axes": (0,)}, [np.empty((1 << 20, 8), F32)], [((8,), F32)])
    assert kernel is not None and kernel.workspace > 0
    launch, finish = kernel.launches[True]
    assert launch.grid[1] > 64 and finish.code.name.startswith("finish")


TRANSPOSED = [((70, 45), (1, 0)), ((3, 33, 65), (0, 2, 1)), ((2, 9, 4, 16), (0, 2, 1, 3)),
              ((2, 3, 40, 50), (0, 1, 3, 2)), ((5, 6, 7), (2, 0, 1))]  # fmt: skip


@pytest.mark.parametrize("shape,axes", TRANSPOSED)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_transposed_copies_equal_numpy(shape: Any, axes: Any, dtype: Any) -> None:
    x = normal(*shape).astype(dtype)
    want = x.transpose(axes)
    outs = [(want.shape, F32)]
    for (got,) in [kernels.run("transpose", {"axes": axes}, [x], outs, offset=n) for n in (0, 1)]:
        np.testing.assert_array_equal(got, want.astype(np.float32))


@pytest.mark.parametrize("source,target", [(F32, F32), (F32, BF16), (F16, F32)])
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (2, 40, 9, 8)])
def test_layouts_are_changed_both_ways(source: Any, target: Any, shape: Any) -> None:
    x = normal(*shape).astype(source)
    orders = (({0}, set()), (set(), {0}), ({0}, {0}), (set(), set()))
    outs = [(x.shape, target)]
    for (got,) in [kernels.run("to_layout", {}, [x], outs, o) for o in orders]:
        np.testing.assert_array_equal(got, x.astype(target))


TYPES = [*"float32 float64 float16 bool int8 uint8 int32 int64 uint64".split(), BF16]


@pytest.mark.parametrize("k", range(len(TYPES)))
def test_types_are_cast_to_others(k: int) -> None:
    """Each to float32, from it, and to the next one: a kernel reads and writes by its own code."""
    for source, target in ((TYPES[k], F32), (F32, TYPES[k]), (TYPES[k - 1], TYPES[k])):
        x = np.random.default_rng(0).integers(0, 100, 37).astype(source)
        (got,) = kernels.run("cast", {}, [x], [(x.shape, target)])
        np.testing.assert_array_equal(got, x.astype(target), err_msg=f"{source} {target}")


def test_arrays_are_joined_channels_last() -> None:
    x, z = normal(2, 8, 3, 5), normal(2, 12, 3, 5, seed=1)
    want = np.concatenate([x, z], 1)
    (got,) = kernels.run("concatenate", {"axis": 1}, [x, z], [(want.shape, BF16)], ({0, 1}, {0}))
    np.testing.assert_array_equal(got, want.astype(BF16))


def test_the_gradient_of_padding_is_a_part() -> None:
    g = normal(4, 9, 8)
    attrs = {"shape": (4, 6, 5), "pad_width": (1, 2, 3, 0), "mode": "constant"}
    (got,) = kernels.run("pad_backward", attrs, [g], [((4, 6, 5), F32)])
    np.testing.assert_array_equal(got, g[:, 1:7, 3:8])


def test_what_32_bits_cannot_count_is_declined() -> None:
    large = Operand((1 << 16, 1 << 15), F32)
    assert SETUPS.find("relu", {}, [large], [large]) is None
    assert SETUPS.find("to_layout", {}, [large], [large]) is None


def test_integers_that_float32_does_not_hold_are_declined() -> None:
    x = np.arange(5, dtype=np.int64)
    assert kernels.find("add2", {}, [x, x], [((5,), np.int64)]) is None
    assert kernels.find("sum", {"axes": (0,)}, [x], [((), np.int64)]) is None
    for dtype in (np.int32, np.int64):  # 2**24 and 2**24 + 1 are one float32
        for op in ("equal", "less"):
            assert kernels.find(op, {}, [x.astype(dtype)] * 2, [((5,), bool)]) is None


@pytest.mark.parametrize("dtype,value", [(np.float64, 0.1), (np.int64, 2**40 + 1)], ids=str)
def test_padding_keeps_all_digits_of_the_constant(dtype: Any, value: float) -> None:
    x = np.ones(3, dtype)
    attrs = {"pad_width": (2, 1), "mode": "constant", "constant_value": value}
    (got,) = kernels.run("pad", attrs, [x], [((6,), dtype)])
    np.testing.assert_array_equal(got, np.pad(x, (2, 1), constant_values=value))
