# SPDX-License-Identifier: Apache-2.0
"""Launches, cuBLAS and sorts on the emulated GPU give what CUDA gives, and refuse what it does."""

from __future__ import annotations

import os

import numpy as np
import pytest

if "EMULATOR_FOLDER" not in os.environ:
    pytest.skip("not run by tests.cuda.emulator", allow_module_level=True)
import cupy
from cupy.cuda import driver

from tests.cuda.emulator.test_runtime import alone

COUNT = r"""
extern "C" __global__ void count(int* out, int n) {
  extern __shared__ int seen[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  seen[threadIdx.x] = i;
  __syncthreads();
  if (i < n) out[i] = seen[threadIdx.x] + 1;
}"""


@pytest.fixture(scope="module")
def count():
    return cupy.RawKernel(COUNT, "count")


def test_a_kernel_runs(count):
    y = cupy.zeros(1000, np.int32)
    count((4,), (256,), (y, np.int32(1000)), shared_mem=1024)
    assert (y.get() == np.arange(1, 1001)).all()


def test_parameters_are_taken_at_the_launch(count):
    y, n = cupy.zeros(8, np.int32), np.array(3, np.int32)
    count((1,), (8,), (y, n), shared_mem=32)
    n[...] = 8
    assert y.get().tolist() == [1, 2, 3, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "grid,block,shared",
    [((1,), (2048,), 0), ((1, 65536), (1,), 0), ((1,), (32, 1, 65), 0), ((1,), (1,), 49153)],
)
def test_launches_beyond_the_limits_are_refused(count, grid, block, shared):
    y = cupy.zeros(8, np.int32)
    with pytest.raises(driver.CUDADriverError, match="INVALID_VALUE"):
        count(grid, block, (y, np.int32(0)), shared_mem=shared)


def test_a_function_may_be_allowed_more_shared_memory():
    kernel, y = cupy.RawKernel(COUNT, "count"), cupy.zeros(8, np.int32)
    kernel.max_dynamic_shared_size_bytes = 227 << 10
    kernel((1,), (8,), (y, np.int32(8)), shared_mem=227 << 10)
    assert y.get()[-1] == 8
    with pytest.raises(driver.CUDADriverError, match="INVALID_VALUE"):
        kernel.max_dynamic_shared_size_bytes = 228 << 10


def test_a_kernel_that_leaves_its_array_breaks_the_device():
    done = alone(f"""
count = cupy.RawKernel({COUNT!r}, "count")
memory = runtime.malloc(4000)
count((4,), (256,), (np.intp(memory), np.int32(1001)), shared_mem=1024)
for _ in range(2):
    try:
        runtime.deviceSynchronize()
    except runtime.CUDARuntimeError as e:
        print(e)
""")
    assert done.stdout.count("cudaErrorIllegalAddress") == 2, done.stderr
    assert "kernel count" in done.stderr or "count" in done.stderr


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32])
@pytest.mark.parametrize("shapes", [((4, 5), (5, 3)), ((2, 4, 5), (2, 5, 3)), ((4, 5), (2, 5, 3))])
def test_products_are_those_of_numpy(dtype, shapes):
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, s).astype(dtype) for s in shapes)
    got = cupy.matmul(cupy.asarray(a), cupy.asarray(b)).get()
    np.testing.assert_array_equal(got, a @ b)  # such small integers are exact


def test_transposed_products_are_those_of_numpy():
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-4, 5, s).astype(np.float32) for s in ((5, 4), (3, 5)))
    got = cupy.dot(cupy.asarray(a).T, cupy.asarray(b).T).get()
    np.testing.assert_array_equal(got, a.T @ b.T)


@pytest.mark.parametrize("axis", [0, 1])
def test_sorts_are_those_of_numpy(axis):
    x = np.random.default_rng(3).permutation(60).reshape(6, 10).astype(np.float32)
    on_device = cupy.asarray(x)
    np.testing.assert_array_equal(cupy.sort(on_device, axis).get(), np.sort(x, axis))
    np.testing.assert_array_equal(cupy.argsort(on_device, axis).get(), np.argsort(x, axis))
    np.testing.assert_array_equal(on_device.get(), x)
