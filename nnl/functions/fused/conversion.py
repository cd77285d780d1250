# SPDX-License-Identifier: Apache-2.0
"""Changes of an array's element type or order in memory."""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import Spec
from nnl.core.graph.casts import converted
from nnl.core.ops.op import Cost, Sample, op


@op("cast", keep=("x",))
class cast:
    """The same values in another element type, rounded to the nearest even; integers wrap.

    Between types of floating point, gradients pass.

    Args:
        dtype: Its name.
        whole: What x is called in the error for elements that are no whole numbers; empty where
            they may be.
    Raises:
        ValueError: x must hold whole numbers and does not.
    """

    dtype: str
    whole: str = ""

    def infer(self, x):
        return x.with_dtype(Spec.of((), self.dtype).dtype)

    def forward(self, xp, x):
        return converted(self.whole, Spec.of((), self.dtype).dtype, x)

    def vjp(self, gy, *, x_spec):
        to_float = Spec.of((), self.dtype).is_float
        return cast(gy, x_spec.type_name) if to_float and x_spec.is_float else None

    def cost(self, x):
        return Cost(x.size, x.nbytes + self.infer(x).nbytes)

    def samples(rng):
        x = rng.normal(size=(2, 3)).astype(np.float32) * 10
        yield Sample(x, dtype="float64")
        for dtype in ("float32", "int64", "int16"):
            yield Sample(x, dtype=dtype, grad=(False,))
        yield Sample(np.arange(6).reshape(2, 3), dtype="float32", grad=(False,))


@op("to_layout")
class to_layout:
    """The same values in another order in memory; in the order of their shape it is a copy.

    Which order is a matter of the value that the step makes, not of the op.
    """

    def infer(self, x):
        return x

    def forward(self, xp, x, out=None):
        if out is None:
            return x.copy()
        out[...] = x
        return out

    def vjp(self, gy):
        return gy

    def cost(self, x):
        return Cost(0, 2 * x.nbytes)

    def samples(rng):
        yield Sample(rng.normal(size=(2, 3, 4)))
