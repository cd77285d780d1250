# SPDX-License-Identifier: Apache-2.0
"""The faults that kernels would show on a GPU only are found on the host."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from nnl.ext.cuda.kernels.module import Code
from tests.cuda import kernels, shim

pytestmark = pytest.mark.usefixtures("host_compiler")
N = 64  # threads of a block, two warps

STRUCTURE = "struct NAME_P { const float* x; float* y; int64 n; };\nKERNEL(NAME, NAME_P) { BODY }\n"
SHARED = "__shared__ float s[64]; const unsigned t = threadIdx.x; s[t] = p.x[t]; "
EXCHANGE = "const unsigned t = threadIdx.x; p.y[t] = p.x[t]; "
FAULTS = {
    "nothing": (SHARED + "__syncthreads(); p.y[t] = s[63 - t];", ""),
    "no_barrier": (SHARED + "p.y[t] = s[63 - t];", "no barrier in between|nothing has written"),
    "shared_again": (
        SHARED + "__syncthreads(); const float v = s[63 - t]; s[t] = v; p.y[t] = v;",
        "no barrier in between",
    ),
    "a_shuffle_orders_nothing": (
        EXCHANGE + "__shfl_xor_sync(~0u, 0.0f, 1); p.y[t] = p.x[t] + p.y[t ^ 1];",
        "no barrier in between",
    ),
    "a_warp_meets": (
        EXCHANGE + "__syncwarp(); const float v = p.y[t ^ 1]; __syncwarp(); p.y[t] = v;",
        "",
    ),
    "another_warp_does_not": (
        EXCHANGE + "__syncwarp(); const float v = p.y[t ^ 32]; __syncwarp(); p.y[t] = v;",
        "no barrier in between|nothing has written",
    ),
    "blocks_write_the_same": ("p.y[threadIdx.x] = p.x[threadIdx.x];", "two blocks"),
    "blocks_read_what_others_write": (
        "const unsigned t = 64 * blockIdx.x + threadIdx.x; p.y[t] = p.x[t] + p.y[t ^ 64];",
        "nothing has written",
    ),
    "too_far": ("p.y[threadIdx.x] = p.x[threadIdx.x + 1];", "outside of the arrays"),
    "written_too_far": ("p.y[threadIdx.x + 1] = 1.0f;", "outside of the arrays"),
    "unwritten": ("p.y[threadIdx.x] += 1.0f;", "nothing has written"),
    "unwritten_shared": (
        "__shared__ float s[64]; p.y[threadIdx.x] = s[threadIdx.x];",
        "nothing has written",
    ),
    "not_aligned": (
        "Pack<float, 4> a = *(const Pack<float, 4>*)(p.x + 1); p.y[threadIdx.x] = a.v[0];",
        "no multiple",
    ),
    "local_array": ("float v[4]; v[0] = 1.0f; p.y[threadIdx.x] = v[p.n + 3];", "undefined"),
    "divergent": ("if (threadIdx.x < 32) __syncthreads();", "different places"),
}
TWO_BLOCKS = {"blocks_write_the_same", "blocks_read_what_others_write"}


def code(name: str) -> Code:
    text = STRUCTURE.replace("BODY", FAULTS[name][0]).replace("NAME", f"fault_{name}")
    return Code(f"fault_{name}", (), text)


@pytest.mark.parametrize("order", [0, 1, 5])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_in_any_order_of_threads(name: str, order: int) -> None:
    shim.compile_all([code(n) for n in FAULTS])
    blocks = 2 if name in TWO_BLOCKS else 1
    x = kernels.placed(np.arange(N * blocks, dtype=np.float32))
    y = kernels.poisoned(x.shape, x.dtype)
    run = shim.FUNCTIONS[code(name)]
    params = struct.pack("=QQq", x.ctypes.data, y.ctypes.data, 1)
    text = FAULTS[name][1]

    def launch() -> None:
        with kernels.reversed_threads(order), shim.watching([x], [y]):
            run((blocks, 1, 1), (N, 1, 1), params, 0)

    if not text:
        launch()
        assert np.isfinite(y).all()
        return
    with pytest.raises(AssertionError, match=text):
        launch()


def test_what_one_launch_writes_the_next_may_read() -> None:
    shim.compile_all([code("nothing"), code("unwritten")])
    x = kernels.placed(np.ones(N, np.float32))
    y = kernels.poisoned(x.shape, x.dtype)
    params = struct.pack("=QQq", x.ctypes.data, y.ctypes.data, 1)
    with shim.watching([x], [y]):
        for name in ("nothing", "unwritten"):
            shim.FUNCTIONS[code(name)]((1, 1, 1), (N, 1, 1), params, 0)
    np.testing.assert_array_equal(y, 2.0)


@pytest.mark.parametrize(
    "grid,block,nbytes",
    [((1 << 31, 1, 1), (32, 1, 1), 8), ((1, 1 << 16, 1), (32, 1, 1), 8),
     ((0, 1, 1), (32, 1, 1), 8), ((1, 1, 1), (512, 1, 1), 8), ((1, 1, 1), (32, 1, 1), 4104)],
)  # fmt: skip
def test_a_launch_that_a_gpu_refuses_is_refused(grid: tuple, block: tuple, nbytes: int) -> None:
    with pytest.raises(AssertionError, match="some_kernel"):
        shim.check_geometry("some_kernel", grid, block, bytes(nbytes))
