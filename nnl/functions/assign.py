# SPDX-License-Identifier: Apache-2.0
"""Writing one array into another as part of a graph."""

from __future__ import annotations

from nnl.core.arrays.spec import check_same_shape
from nnl.core.ops.op import Sample, op
from nnl.functions.layout import MovesData

CATEGORY = "Array manipulation"

__all__ = ["assign"]


class Writes(MovesData):
    """Common to functions that write src into dst and return it."""

    def forward(self, xp, dst, src):
        dst[...] = src
        return src.copy()


@op("assign", nnp="Assign", writes=("dst",))
class assign(Writes):
    r"""Write src into dst, when the function is executed: $dst \leftarrow src$.

    Args:
        dst: The array that is overwritten; it keeps its dtype.
        src: Same shape.
    Returns:
        A copy of src. As in NNabla its gradient goes to dst, as if dst had always held this
        value, and src gets none.
    Raises:
        ShapeError: The shapes differ.
    """

    def infer(self, dst, src):
        check_same_shape("assign", "dst", dst, "src", src)
        return src

    def vjp(self, gy):
        return gy, None

    def samples(rng):
        # order 0: the gradient is defined, not the derivative of the value
        yield Sample(rng.normal(size=(2, 3)), rng.normal(size=(2, 3)), order=0)
        yield Sample(rng.normal(size=()), rng.normal(size=()), order=0)


@op("keep_states")
class keep_states(MovesData):
    """y, once all of `done` has been computed: what writes states that nobody reads."""

    def infer(self, y, *done):
        return y

    def forward(self, xp, y, *done):
        return y.copy()

    def vjp(self, gy, *, done_spec):
        return gy, *[None] * len(done_spec)

    def samples(rng):
        y, x = rng.normal(size=(2, 3)), rng.normal(size=(4,))
        yield Sample(y, x, x, grad=(True, False, False))


@op("store", writes=("dst",))
class store(Writes):
    """Write src into dst and return src; the gradient goes to src."""

    def infer(self, dst, src):
        check_same_shape("store", "dst", dst, "src", src)
        return src

    def vjp(self, gy):
        return None, gy

    def samples(rng):
        yield Sample(rng.normal(size=(2, 3)), rng.normal(size=(2, 3)), grad=(False, True))
