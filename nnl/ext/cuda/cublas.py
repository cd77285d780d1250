# SPDX-License-Identifier: Apache-2.0
"""Products of matrices without anything after them, by cuBLAS.

cuDNN's engines for them round float32 to 10 bits, and cuBLAS has been tuned for 16 bits for longer.
CuPy refuses to call it while a CUDA graph is recorded, though cuBLAS itself allows that, so its
library is called here. Not yet run on a GPU.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import math
import threading
from collections.abc import Callable
from typing import Any

from nnl.ext.cuda.cudnn.lower import NotSupported
from nnl.ext.cuda.cudnn.spec import Array, Graph

__all__ = ["Blas", "Product", "is_product", "load", "make_blas"]

logger = logging.getLogger("nnl")

TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}  # of cudaDataType_t
SUMS_IN_FLOAT32, WITH_TF32 = 68, 77  # of cublasComputeType_t
HEURISTICS = -1  # of cublasGemmAlgo_t
AS_IT_LIES, TRANSPOSED = 0, 1  # of cublasOperation_t
WORKSPACE = 32 << 20  # bytes, what NVIDIA recommends for Hopper
MOST_CALLS = 64  # of a product whose batch axes cannot be one
MOST = (1 << 31) - 1  # sizes are ints

_INT, _LONG, _POINTER = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p
_MATRIX = [_POINTER, _INT, _INT, _LONG]  # address, type, leading dimension, distance in a batch
SIGNATURES = {
    "cublasCreate_v2": [_POINTER],
    "cublasSetStream_v2": [_POINTER, _POINTER],
    "cublasSetWorkspace_v2": [_POINTER, _POINTER, ctypes.c_size_t],
    "cublasGemmStridedBatchedEx": [
        _POINTER, *[_INT] * 5, _POINTER, *_MATRIX, *_MATRIX, _POINTER, *_MATRIX, *[_INT] * 3,
    ],
}  # fmt: skip
ONE, ZERO = ctypes.c_float(1.0), ctypes.c_float(0.0)


def load() -> Any:
    """cuBLAS's library, found as CuPy finds it.

    Raises:
        ImportError, OSError, RuntimeError: It is not there.
    """
    from cuda.pathfinder import load_nvidia_dynamic_lib

    return ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path)


class Blas:
    """cuBLAS on the current device, with a handle for each thread.

    Args:
        library: The library, or something with its functions.
    """

    def __init__(self, library: Any) -> None:
        self.functions = {}
        for name, types in SIGNATURES.items():
            f = self.functions[name] = getattr(library, name)
            f.argtypes, f.restype = types, _INT
        self.local = threading.local()

    def call(self, name: str, *args: Any) -> None:
        """Raises RuntimeError where cuBLAS reports an error."""
        status = self.functions[name](*args)
        if status:
            raise RuntimeError(f"cuBLAS: {name} gives the status {status}")

    def handle(self) -> int:
        """The handle of this thread."""
        if not hasattr(self.local, "handle"):
            made = ctypes.c_void_p()
            self.call("cublasCreate_v2", ctypes.byref(made))
            self.local.handle = made.value
        found: int = self.local.handle
        return found


def make_blas(library: Callable[[], Any] = load) -> Blas | None:
    """cuBLAS on the current device, None where it cannot be used; the log says why."""
    try:
        blas = Blas(library())
        blas.handle()
    except (ImportError, OSError, AttributeError, RuntimeError) as e:
        logger.warning("cuBLAS: it is not used, and float32 products are not recorded: %s", e)
        return None
    return blas


def is_product(graph: Graph) -> bool:
    """Whether a graph is one product of matrices and nothing else."""
    return len(graph.nodes) == 1 and graph.nodes[0].op == "matmul"


class Product:
    """What runs the graph of a product, as a `Plan` does.

    cuBLAS sees matrices column by column, so what lies in rows is transposed there, and c = a b is
    c^T = b^T a^T.

    Raises:
        NotSupported: The matrices do not lie as cuBLAS takes them.
    """

    def __init__(self, blas: Blas, graph: Graph) -> None:
        self.blas, self.graph, self.operands = blas, graph, graph.operands
        self.workspace = WORKSPACE
        node, arrays = graph.nodes[0], graph.by_uid
        a, b = (arrays[dict(node.ins)[port]] for port in "AB")
        c = arrays[dict(node.outs)["C"]]
        self.uids = b.uid, a.uid, c.uid
        (m, n), k = c.dim[-2:], a.dim[-1]
        sides = [lying(x) for x in (b, a, c)]
        if sides[2][0] != AS_IT_LIES or max(m, n, k, *(ld for _, ld in sides)) > MOST:
            raise NotSupported(f"cuBLAS: a product of {a} and {b}")
        *outer, inner = c.dim[:-2]
        steps = [along(x, c) for x in (b, a, c)]
        self.types = [TYPES[x.dtype] for x in (b, a, c)]
        self.begin = (sides[0][0], sides[1][0], n, m, k, ctypes.addressof(ONE))
        self.leading = [ld for _, ld in sides]
        self.inner = [s[-1] for s in steps]
        compute = WITH_TF32 if graph.tf32 else SUMS_IN_FLOAT32
        self.end = (inner, compute, HEURISTICS)
        if math.prod(outer) > MOST_CALLS:
            raise NotSupported(f"cuBLAS: a batch of {list(c.dim[:-2])} whose axes are not one")
        sizes = [4 if x.dtype == "float32" else 2 for x in (b, a, c)]
        self.starts = [
            [
                size * sum(i * s for i, s in zip(index, step, strict=False))
                for size, step in zip(sizes, steps, strict=True)
            ]
            for index in itertools.product(*map(range, outer))
        ]

    def run(self, addresses: dict[int, int], workspace: int, stream: int) -> None:
        """Launch on a stream, given the addresses of all operands by uid."""
        blas, handle = self.blas, self.blas.handle()
        blas.call("cublasSetStream_v2", handle, stream)
        blas.call("cublasSetWorkspace_v2", handle, workspace, WORKSPACE)
        for starts in self.starts:
            x, y, z = (
                (addresses[uid] + start, kind, ld, step)
                for uid, start, kind, ld, step in zip(
                    self.uids, starts, self.types, self.leading, self.inner, strict=True
                )
            )
            zero = ctypes.addressof(ZERO)
            blas.call(
                "cublasGemmStridedBatchedEx", handle, *self.begin, *x, *y, zero, *z, *self.end
            )


def lying(x: Array) -> tuple[int, int]:
    """(operation, leading dimension) with which cuBLAS sees the transpose of matrices."""
    (rows, columns), (down, right) = x.dim[-2:], x.stride[-2:]
    if (right == 1 or columns == 1) and (down >= columns or rows == 1):
        return AS_IT_LIES, max(down, columns)
    if (down == 1 or rows == 1) and (right >= rows or columns == 1):
        return TRANSPOSED, max(right, rows)
    raise NotSupported(f"cuBLAS: a matrix {x} with the strides {x.stride}")


def along(x: Array, c: Array) -> list[int]:
    """Strides along the batch axes of c; 0 where x is stretched."""
    pairs = zip(x.dim[:-2], x.stride[:-2], strict=True)
    return [0 if n == 1 and m > 1 else s for (n, s), m in zip(pairs, c.dim[:-2], strict=True)]
