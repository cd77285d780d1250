# SPDX-License-Identifier: Apache-2.0
"""Matrix products that definitions ask for, such as those within recurrent layers, in a form that
recorded graphs can contain: CuPy refuses to call cuBLAS there, though cuBLAS itself allows it.

Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from nnl.ext.cuda.cudnn.gemm import WORKSPACE, Blas, Product, load
from nnl.ext.cuda.cudnn.lower import NotSupported
from nnl.ext.cuda.cudnn.spec import FIRST, Array, Draft

UIDS = FIRST["in"], FIRST["in"] + 1, FIRST["out"]
Layout = tuple[tuple[int, ...], tuple[int, ...]]  # shape and strides in bytes


class Products:
    """numpy.matmul for float32 arrays of a device by cuBLAS, for what that does not take by CuPy.

    Args:
        device: A Device.
        library: () -> cuBLAS's library; tests put another in place.
    """

    def __init__(self, device: Any, library: Callable[[], Any] = load) -> None:
        self.device, self.library = device, library
        self.product = lru_cache(maxsize=256)(self._product)

    @cached_property
    def blas(self) -> Blas | None:
        """None without the library: CuPy multiplies, and says why it is not recorded."""
        try:
            return Blas(self.library())
        except (ImportError, OSError, AttributeError, RuntimeError):
            return None

    def matmul(self, xp: Any, a: Any, b: Any, out: Any = None) -> Any:
        """a b by the array module xp, written to `out` if that is given."""
        arrays = (a, b) if out is None else (a, b, out)
        if any(x.ndim < 2 or x.dtype != np.float32 or not x.size for x in arrays):
            return xp.matmul(a, b, out=out)
        y = out
        if y is None:
            batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
            y = xp.empty((*batch, a.shape[-2], b.shape[-1]), a.dtype)
        product = self.product(*((x.shape, x.strides) for x in (a, b, y)))
        if product is None:
            return xp.matmul(a, b, out=out)
        addresses = [self.device.address_of(x) for x in (a, b, y)]
        scratch = xp.empty((WORKSPACE,), "uint8")
        product.run(
            dict(zip(UIDS, addresses, strict=True)),
            self.device.address_of(scratch),
            self.device.stream,
        )
        return y

    def _product(self, a: Layout, b: Layout, y: Layout) -> Product | None:
        """What multiplies arrays that lie so; None where cuBLAS does not."""
        rank = max(3, len(y[0]))
        sizes = [(1,) * (rank - len(shape)) + shape for shape, _ in (a, b, y)]
        m, k, n = *sizes[0][-2:], sizes[1][-1]
        batch = np.broadcast_shapes(sizes[0][:-2], sizes[1][:-2])
        fits = sizes[1][-2] == k and sizes[2] == (*batch, m, n)
        if self.blas is None or not fits or any(s < 0 for _, strides in (a, b, y) for s in strides):
            return None
        draft = Draft()
        for uid, size, (_, strides) in zip(UIDS, sizes, (a, b, y), strict=True):
            steps = (0,) * (rank - len(strides)) + tuple(s // 4 for s in strides)
            draft.add(Array(uid, size, steps, "float32"))
        draft.node("matmul", {"A": UIDS[0], "B": UIDS[1]}, {"C": UIDS[2]})
        try:
            return Product(self.blas, draft.graph())
        except NotSupported:
            return None
