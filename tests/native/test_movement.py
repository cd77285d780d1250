# SPDX-License-Identifier: Apache-2.0
"""Native kernels that move data: exact for every element type, order in memory and odd size."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.native.kernels import (
    BF16,
    F16,
    F32,
    from_channels_last,
    require_library,
    to_channels_last,
)
from tests.native.programs import in_place, may_overwrite, run

RNG = np.random.default_rng(11)
TYPES = [F32, BF16, F16, np.dtype(np.int8), np.dtype(np.int64), np.dtype(np.uint16)]


def numbers(*shape: int, dtype: Any = F32) -> np.ndarray:
    return RNG.integers(0, 100, shape).astype(dtype)


def check(op: str, attrs: dict[str, Any], inputs: list[np.ndarray], *wants: np.ndarray) -> None:
    got = run(op, attrs, inputs, [(w.shape, w.dtype) for w in wants])
    assert got is not None
    for g, w in zip(got if len(wants) > 1 else (got,), wants, strict=True):
        assert np.array_equal(g, w)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(33, 65), (64, 64), (3, 1000), (1000, 3), (1, 7), (0, 5)])
def test_matrices_are_transposed(shape: tuple[int, int], dtype: np.dtype) -> None:
    x = numbers(*shape, dtype=dtype)
    check("transpose", {"axes": (1, 0)}, [x], x.T)


@pytest.mark.parametrize("axes", list(itertools.permutations(range(4))), ids=str)
def test_axes_in_any_order(axes: tuple[int, ...]) -> None:
    for shape in ((3, 17, 5, 33), (2, 16, 32, 48), (2, 1, 70, 1)):
        x = numbers(*shape)
        check("transpose", {"axes": axes}, [x], x.transpose(axes))
        got = run("transpose", {"axes": axes}, [x], [(x.transpose(axes).shape, F32)], ({0}, {0}))
        assert np.array_equal(from_channels_last(got), x.transpose(axes))


@pytest.mark.parametrize("source", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("target", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("shape", [(2, 19, 5, 7), (2, 32, 8, 8), (2, 3, 40, 41), (3, 4, 5, 6, 7)])
def test_layouts_and_types_change_together(
    shape: tuple[int, ...], source: np.dtype, target: np.dtype
) -> None:
    x = RNG.normal(size=shape).astype(source)
    want = x.astype(F32).astype(target)
    got = run("to_layout", {}, [x], [(shape, target)], (set(), {0}))
    assert np.array_equal(got, to_channels_last(want))
    got = run("to_layout", {}, [x], [(shape, target)], ({0}, set()))
    assert np.array_equal(got, want)


def test_halves_keep_nan_and_infinity_through_tiles() -> None:
    x = numbers(1, 32, 4, 8)
    x[0, :4, 0, 0] = np.nan, np.inf, -np.inf, -0.0
    for dtype in (BF16, F16):
        got = run("to_layout", {}, [x], [(x.shape, dtype)], (set(), {0}))
        assert np.array_equal(got, to_channels_last(x.astype(dtype)), equal_nan=True)


@pytest.mark.parametrize(
    "source", ["float32", "float64", "float16", "int8", "uint8", "int16", "int64", "uint32", "bool"]
)
@pytest.mark.parametrize("target", ["float32", "float64", "float16", "int32", "uint8", "bool"])
def test_element_types_change_as_in_numpy(source: str, target: str) -> None:
    x = RNG.integers(0, 120, 3001).astype(source)
    if np.dtype(source).kind == "f":
        x += np.array(0.75, source)
    check("cast", {}, [x], x.astype(target))
    x = np.array([2**53 + 1, -5], np.int64)
    check("cast", {}, [x], x.astype(np.uint64))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_arrays_are_joined_and_taken_apart(axis: int, last: bool) -> None:
    shapes = [[2, 3, 4, 5] for _ in range(3)]
    for i, n in enumerate((1, 70, 2)):
        shapes[i][axis] = n
    xs = [numbers(*s) for s in shapes]
    want = np.concatenate(xs, axis)
    order = ({0, 1, 2}, {0}) if last else (set(), set())
    got = run("concatenate", {"axis": axis}, xs, [(want.shape, F32)], order)
    assert np.array_equal(from_channels_last(got) if last else got, want)
    same = [numbers(2, 3, 40) for _ in range(4)]
    check("stack", {"axis": axis}, same, np.stack(same, axis))
    x = numbers(3, 4, 5, 6, dtype=BF16)
    check("split", {"axis": axis}, [x], *np.moveaxis(x, axis, 0))


@pytest.mark.parametrize("last", [False, True])
def test_regular_parts(last: bool) -> None:
    x = numbers(4, 9, 11, 13)
    order = ({0}, {0}) if last else (set(), set())
    starts = [(0, 1, 2, 3), (3, -1, -1, -2), (1, 8, 0, 12), (-9, 0, 20, 0)]
    stops = [(4, 8, 11, 12), (-9, 2, -20, 0), (3, -10, 5, -20), (9, 1, 30, 2)]
    steps = [(1, 2, 3, 1), (-1, -2, -1, -3), (1, -1, 2, -1), (2, 1, 1, 5)]
    for start, stop, step in zip(starts, stops, steps, strict=True):
        attrs = {"start": start, "stop": stop, "step": step}
        part = tuple(
            slice(a, None if e < 0 else e, d)
            for n, s in zip(x.shape, zip(start, stop, step, strict=True), strict=True)
            for a, e, d in [slice(*s).indices(n)]
        )
        want = x[part]
        got = run("slice", attrs, [x], [(want.shape, F32)], order)
        assert np.array_equal(from_channels_last(got) if last else got, want)
        back = np.zeros_like(x)
        back[part] = want
        attrs["shape"] = x.shape
        got = run("slice_backward", attrs, [want], [(x.shape, F32)], order)
        assert np.array_equal(from_channels_last(got) if last else got, back)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_reversing_repeating_stretching(dtype: np.dtype) -> None:
    x = numbers(3, 5, 70, dtype=dtype)
    for axes in ((0,), (2,), (0, 2), (0, 1, 2), (1, 1)):
        check("flip", {"axes": axes}, [x], np.flip(x, tuple(set(axes))))
    for reps in ((2,), (2, 1, 3), (1, 1, 1), (2, 3, 1, 2)):
        check("tile", {"reps": reps}, [x], np.tile(x, reps))
    y = numbers(3, 1, 7, dtype=dtype)
    check("broadcast", {"shape": (2, 3, 5, 7)}, [y], np.broadcast_to(y, (2, 3, 5, 7)).copy())
    z = numbers(5, dtype=dtype)
    want = np.broadcast_to(z[:, None], x.shape).copy()
    check("broadcast_to", {"axis": 1}, [x, z], want)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", [(1, 2), (0, 3, 2, 0), (2, 1, 0, 0, 5, 4), (0, 0), (9, 17)])
@pytest.mark.parametrize("mode", ["constant", "reflect", "repeat"])
def test_padding(mode: str, width: tuple[int, ...], dtype: np.dtype) -> None:
    x = numbers(3, 4, 6, dtype=dtype)
    pairs = [(0, 0)] * (3 - len(width) // 2) + list(zip(width[::2], width[1::2], strict=True))
    attrs = {"pad_width": width, "mode": mode, "constant_value": 7.0}
    more = {"constant_values": 7} if mode == "constant" else {}
    kind = {"repeat": "edge"}.get(mode, mode)
    want = np.pad(x.astype(np.int64), pairs, kind, **more).astype(dtype)
    check("pad", attrs, [x], want)


def test_one_element_is_reflected_as_itself() -> None:
    x = np.array([[3.0]], F32)
    attrs = {"pad_width": (2, 1), "mode": "reflect", "constant_value": 0.0}
    check("pad", attrs, [x], np.full((1, 4), 3, F32))


@pytest.mark.parametrize("dtype", [*TYPES, np.dtype(np.bool_)], ids=str)
def test_copies(dtype: np.dtype) -> None:
    x = numbers(3, 4, 5, 6, dtype=dtype)
    check("identity", {}, [x], x)
    check("reshape", {"shape": (12, 30), "inplace": False}, [x], x.reshape(12, 30))
    got = run(
        "reshape", {"shape": (12, 30), "inplace": False}, [x], [((12, 30), dtype)], ({0}, set())
    )
    assert np.array_equal(got, x.reshape(12, 30))
    spec = [(x.shape, dtype)]
    assert may_overwrite("identity", {}, spec, spec) == [True]
    assert np.array_equal(in_place("identity", {}, [x.copy()], 0), x)


def test_inputs_need_not_be_contiguous() -> None:
    x = numbers(40, 50)[::2, ::3]
    check("transpose", {"axes": (1, 0)}, [x], x.T)


def test_any_number_of_threads() -> None:
    lib, x = require_library(), numbers(3, 130, 257)
    before = lib.threads()
    for n in (1, 2, 3):
        lib.set_threads(n)
        check("transpose", {"axes": (2, 0, 1)}, [x], x.transpose(2, 0, 1))
        check("transpose", {"axes": (1, 0, 2)}, [x], x.transpose(1, 0, 2))
        check("cast", {}, [x], x.astype(BF16))
    lib.set_threads(before)
