# SPDX-License-Identifier: Apache-2.0
"""CUDA C on the PTX interpreter: what threads tell each other, memory, functions, faults."""

from __future__ import annotations

import math
import struct
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cuda import ptx

pytestmark = pytest.mark.long  # the interpreter is built first, which takes a minute

if not ptx.available():
    pytest.skip("there is no g++, or no NVRTC", allow_module_level=True)

ALL = 0xFFFFFFFF
SOURCE = (ptx.SOURCES / "samples.cu").read_text()


@cache
def module() -> ptx.Module:
    return ptx.Module(ptx.assembly(SOURCE, ("-arch=compute_90", "--std=c++17")))


def numbers(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-50, 50, 64, np.int32)


def launch(
    name: str, x: np.ndarray, y: Any = np.int32, count: int = 64, shared: int = 0
) -> np.ndarray:
    out = np.zeros(count, y)
    ranges = np.array([[a.ctypes.data, a.nbytes] for a in (x, out)], np.uint64)
    params = struct.pack("=2Q", x.ctypes.data, out.ctypes.data)
    module().run(name, (1, 1, 1), (64, 1, 1), params, ranges, shared)
    return out


def test_shuffles() -> None:
    x, t = numbers(), np.arange(64)
    up, down, across, index = launch("shuffles", x, count=256).reshape(4, 64)
    np.testing.assert_array_equal(up, x[np.where(t % 16 >= 3, t - 3, t)])
    np.testing.assert_array_equal(down, x[np.where(t % 32 + 5 < 32, t + 5, t)])
    np.testing.assert_array_equal(across, x[t ^ 9])
    np.testing.assert_array_equal(index, x[t // 8 * 8 + t * 7 % 8])


def test_votes_matches_and_reductions() -> None:
    x = numbers()
    got = launch("votes", x, np.uint32, 384).reshape(6, 2, 32)
    for w, v in enumerate(x.reshape(2, 32)):
        weights = np.uint64(1) << np.arange(32, dtype=np.uint64)
        assert (got[0, w] == weights[v > 0].sum()).all()
        assert (got[1, w] == 2).all()
        assert got[2, w].tolist() == [weights[v & 3 == k & 3].sum() for k in v]
        assert (got[3, w] == 0).all()  # all ones, and one
        assert (got[4, w].view(np.int32) == v.sum()).all()
        assert (got[5, w].view(np.int32) == v.max()).all()


def test_lanes_that_have_parted_meet_again() -> None:
    x, t = numbers(), np.arange(64)
    got = launch("parts_of_a_warp", x, np.uint32, 192).reshape(3, 64)
    for w in range(2):
        lanes = t[32 * w : 32 * w + 32]
        third = sum(1 << int(k) % 32 for k in lanes if k % 3 == 0)
        positive = sum(1 << int(k) % 32 for k in lanes if k % 3 and x[k] > 0)
        assert got[0, lanes].tolist() == [positive if k % 3 else third for k in lanes]
        assert got[1, lanes].tolist() == [0 if k % 3 else third for k in lanes]
    assert (got[2] == ALL).all()


def test_barriers_count_and_join() -> None:
    x = numbers()
    got = launch("barriers", x, np.uint32, 128).reshape(2, 64)
    assert (got[0] == (x > 0).sum()).all() and (got[1] == 2).all()


def test_some_arrive_and_others_wait() -> None:
    x = numbers()
    got = launch("one_after_the_other", x)
    np.testing.assert_array_equal(got, np.r_[np.zeros(32, int), x[31::-1] * 3])


def test_a_barrier_does_not_wait_for_threads_that_have_left() -> None:
    x, t = numbers(), np.arange(64)
    np.testing.assert_array_equal(launch("some_leave", x), np.where(t % 2, -1, x[62 - t + t % 2]))


def test_lanes_that_spin_get_what_they_wait_for() -> None:
    x = numbers()
    assert (launch("spinning", x) == x.sum()).all()


def test_shared_memory_of_a_launch() -> None:
    x = numbers()
    np.testing.assert_array_equal(launch("dynamic", x, shared=256), x[::-1] + x[0])
    with pytest.raises(ptx.Fault, match=r"illegal shared address 0x90: there are 144 bytes"):
        launch("dynamic", x, shared=128)


def test_variables_of_a_module() -> None:
    x = numbers()
    before = launch("variables", x)
    assert launch("variables", x)[0] - before[0] == 2
    assert before[1:5].tolist() == [1, 4, 1, 3]


def test_local_arrays() -> None:
    x, t = numbers(), np.arange(64)
    np.testing.assert_array_equal(launch("local_arrays", x), x[(t + (t & 7) + (x & 7)) % 64])


def test_pointers_to_any_memory() -> None:
    x, t = numbers(), np.arange(64)
    kinds = np.array([0, 1000, 2000])[t % 3]
    np.testing.assert_array_equal(launch("generic", x), np.where(t % 3 == 2, 2 * x, x) + kinds)


def test_functions_that_are_called() -> None:
    x = numbers()
    v = np.where(x & 1, x, x + 1)
    want = np.where(x & 1, 1, -1) * (2.0 * v + v)
    np.testing.assert_array_equal(launch("calls", x, np.float32), want)


def test_cases() -> None:
    x = numbers()
    rem = np.fmod(x, 5)
    want = np.choose(x & 7, [x * 3, x - 7, ~x, x << 3, rem, 11, x * x, -1])
    np.testing.assert_array_equal(launch("cases", x), want)


def test_mathematical_functions() -> None:
    x = np.random.default_rng(1).uniform(-1.4, 1.4, 64)
    erf, lgamma = np.vectorize(math.erf), np.vectorize(math.lgamma)
    want = np.sin(x * 1e6) + abs(x) ** 1.7 + erf(x) + lgamma(abs(x) + 1) + np.cbrt(x)
    np.testing.assert_allclose(launch("mathematics", x, np.float64), want, rtol=1e-12, atol=1e-14)
    f = x.astype(np.float32)
    x = f.astype(np.float64)
    large = (f * np.float32(1e6)).astype(np.float64)
    want = np.sin(large) + abs(x) ** 1.7 + erf(x) + np.expm1(x) + np.tan(x)
    np.testing.assert_allclose(launch("mathematics_f", f, np.float32), want, rtol=1e-5, atol=2e-6)


FAULTS = {
    "fails": r"kernel fails, block \(0, 0, 0\), thread \(37, 0, 0\), line \d+ `ld.global.*`: "
    r"illegal global address 0x\w+: 4 bytes there are in no allocation",
    "traps": r"thread \(33, 0, 0\), line \d+ `.*trap;`: trap",
    "crooked": r"thread \(1, 0, 0\), .*misaligned global address 0x\w+: no multiple of 4",
    "wild": r"thread \(9, 0, 0\), .*illegal global address 0x\w+",
    "far_shared": r"thread \(5, 0, 0\), .*illegal shared address 0x104: there are 256 bytes",
    "never": r"threads wait at a barrier to which the others never come",
    "reads_absent": r"it reads from lane 30, which does not take part",
    "asserts": r"thread \(40, 0, 0\), .*assertion failed: t < 40 \(file.cu:7\)",
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_says_where_and_what(name: str) -> None:
    x = numbers() if name != "wild" else np.full(64, 12345, np.int32)
    with pytest.raises(ptx.Fault, match=FAULTS[name]):
        launch(name, x)


def test_lanes_that_have_left_may_be_named() -> None:
    x = numbers()
    got = launch("absent", x)
    assert got[0] == x[3]


def test_what_is_refused_is_refused_when_it_is_reached() -> None:
    assert (launch("prints", numbers()) == 7).all()
    x = np.full(64, 1 << 30, np.int32)
    with pytest.raises(ptx.Fault, match=r"`call.uni.*`: it calls what is not in the text"):
        launch("prints", x)


def test_a_launch_that_cannot_be() -> None:
    x = numbers()
    params = struct.pack("=2Q", x.ctypes.data, x.ctypes.data)
    with pytest.raises(ptx.Fault, match="kernel cases: blocks of 2048 threads"):
        module().run("cases", (1, 1, 1), (64, 32, 1), params)
    with pytest.raises(ptx.Fault, match="there is no kernel other"):
        module().run("other", (1, 1, 1), (64, 1, 1), params)
    with pytest.raises(
        ptx.Fault, match=r"line 3 `add.s32 %r1, %r2, 1;`: there is no %r1|not known"
    ):
        ptx.Module(b".version 9.0\n.visible .entry f() {\nadd.s32 %r1, %r2, 1;\n}\n")


# ---- CuPy's headers ----

CUPY = """
#include <cupy/complex.cuh>
#include <cupy/carray.cuh>
#include <cupy/atomics.cuh>
#include <cupy/float16.cuh>
extern "C" __global__ void elementwise(CArray<float, 2, 0, 1> x, CArray<double, 2, 1, 1> y,
                                       CIndexer<2, 1> at) {
  CUPY_FOR(i, at.size()) {
    at.set(i);
    y[at.get()] = x[at.get()] * 2.0;
  }
}
extern "C" __global__ void complexes(CArray<complex<double>, 1, 1, 1> x) {
  CUPY_FOR(i, x.size()) { x[i] = exp(x[i]) / x[i]; }
}
extern "C" __global__ void halves(CArray<float16, 1, 1, 1> x, CArray<float16, 1, 1, 1> y) {
  CUPY_FOR(i, x.size()) {
    y[i + 1] = float16((float)x[i] * 2);
    atomicAdd(&y[0], x[i]);
  }
}
"""


@cache
def cupy_module() -> ptx.Module:
    import cupy
    from cuda.pathfinder import find_nvidia_header_directory

    include = Path(cupy.__file__).parent / "_core/include"
    folders = [include / "cupy/_cccl" / f for f in ("cub", "libcudacxx", "thrust")]
    options = [f"-I{f}" for f in (*folders, include, find_nvidia_header_directory("cudart"))]
    return ptx.Module(ptx.assembly(CUPY, (*ptx.OPTIONS, *options)))


def carray(x: np.ndarray) -> bytes:
    """An array as kernels of CuPy take it: address, size, shape, strides."""
    return struct.pack(f"=2q{2 * x.ndim}q", x.ctypes.data, x.size, *x.shape, *x.strides)


def test_kernels_of_cupy() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((9, 6), np.float32).T, np.zeros((6, 9))
    indexer = struct.pack("=q2q2q", x.size, *x.shape, 0, 0)
    params = carray(x) + carray(y) + indexer
    assert cupy_module().info("elementwise")["parameter_bytes"] == len(params)
    cupy_module().run("elementwise", (2, 1, 1), (128, 1, 1), params)
    np.testing.assert_array_equal(y, x.astype(np.float64) * 2)

    z = rng.random(40) + 1j * rng.random(40)
    want = np.exp(z) / z
    cupy_module().run("complexes", (1, 1, 1), (128, 1, 1), carray(z))
    np.testing.assert_allclose(z, want, rtol=1e-14)

    h, sums = np.arange(40).astype(np.float16), np.zeros(41, np.float16)
    cupy_module().run("halves", (1, 1, 1), (128, 1, 1), carray(h) + carray(sums))
    np.testing.assert_array_equal(sums, np.r_[h.sum(), h * 2])
