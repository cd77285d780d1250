# SPDX-License-Identifier: Apache-2.0
"""Matrix products that definitions ask for, such as those within recurrent layers, in a form that
recorded graphs can contain: CuPy refuses to call cuBLAS there, though cuBLAS itself allows it.

Not yet run on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from nnl.ext.cuda.cublas import WORKSPACE, Blas, Product, load, make_blas
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
        return make_blas(self.library)

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

    def einsum(self, xp: Any, equation: str, *operands: Any, **kw: Any) -> Any:
        """numpy.einsum, two operands at a time from the left."""
        inputs, _, result = equation.partition("->")
        terms, arrays = inputs.split(","), list(operands)
        if not all(map(plain, [*terms, result])) or not same_sizes(terms, arrays):
            return xp.einsum(equation, *operands, **kw)
        while len(arrays) > 1:
            kept = "".join([*terms[2:], result])
            term, y = self._contract(xp, terms[0], arrays[0], terms[1], arrays[1], kept)
            terms[:2], arrays[:2] = [term], [y]
        return xp.einsum(f"{terms[0]}->{result}", arrays[0])

    def _contract(
        self, xp: Any, of_a: str, a: Any, of_b: str, b: Any, kept: str
    ) -> tuple[str, Any]:
        """(letters, sum of a b over the letters that nobody needs any more)."""
        both = [c for c in of_a if c in of_b]
        batch, inner = [c for c in both if c in kept], [c for c in both if c not in kept]
        rows, columns = [c for c in of_a if c not in both], [c for c in of_b if c not in both]
        size = dict(zip(of_a + of_b, a.shape + b.shape, strict=True))
        a = xp.transpose(a, [of_a.index(c) for c in batch + rows + inner])
        if not rows and not columns:
            b = xp.transpose(b, [of_b.index(c) for c in batch + inner])
            return "".join(batch), (a * b).sum(tuple(range(len(batch), len(both))))
        b = xp.transpose(b, [of_b.index(c) for c in batch + inner + columns])
        count, m, k, n = (
            math.prod(size[c] for c in part) for part in (batch, rows, inner, columns)
        )
        y = self.matmul(xp, a.reshape(count, m, k), b.reshape(count, k, n))
        letters = batch + rows + columns
        return "".join(letters), y.reshape([size[c] for c in letters])

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


def plain(term: str) -> bool:
    """Whether a term of einsum is of different letters only."""
    return len(set(term)) == len(term) and (term.isalpha() or not term)


def same_sizes(terms: Sequence[str], arrays: Sequence[Any]) -> bool:
    """Whether every letter stands for axes of one size."""
    if [len(t) for t in terms] != [x.ndim for x in arrays]:
        return False
    pairs = {p for t, x in zip(terms, arrays, strict=True) for p in zip(t, x.shape, strict=True)}
    return len(pairs) == len(dict(pairs))
