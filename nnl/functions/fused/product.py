# SPDX-License-Identifier: Apache-2.0
"""Products of matrices with what follows them."""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import ShapeError
from nnl.core.ops.op import Cost, Sample, op
from nnl.functions.affine import affine, batch_matmul
from nnl.functions.arithmetic import add2
from nnl.functions.fused.activation import activate, check_activation
from nnl.functions.reduction import reshape

ACTIVATIONS = frozenset(["identity", "relu", "gelu", "tanh", "sigmoid", "swish"])


@op("affine_fused", narrow=True)
class affine_fused:
    """activation(affine(x, weight, bias) + z).

    Args:
        x, weight, bias, base_axis: As for `affine`.
        z: What is added before the activation, of the shape of the result; optional.
        activation: "identity", "relu", "gelu", "tanh", "sigmoid" or "swish".
        packed: Whether weight is what `pack_weights` has made. w_shape: its shape before.
    """

    base_axis: int = 1
    activation: str = "identity"
    packed: bool = False
    w_shape: tuple[int, ...] = ()
    extends = "affine"

    def infer(self, x, weight, bias=None, z=None):
        check_activation(self.op, self.activation, ACTIVATIONS)
        y = affine.attrs(base_axis=self.base_axis).infer(x, self.whole(x, weight), bias)
        if z is not None and z.shape != y.shape:
            raise ShapeError(f"affine_fused: z {z} must have the shape of the result {y}")
        return y

    def decompose(self, x, weight, bias=None, z=None):
        y = affine(x, weight, bias, base_axis=self.base_axis)
        return activate(self.activation, y if z is None else add2(y, z))

    def whole(self, x, weight):
        """The spec of weights before they were packed."""
        return x.with_shape(self.w_shape) if self.packed else weight

    def cost(self, x, weight, bias=None, z=None):
        own = affine.attrs(base_axis=self.base_axis).cost(x, self.whole(x, weight), bias)
        return Cost(own.flops, own.bytes + (0 if z is None else z.nbytes))

    def samples(rng):
        x, w, b = rng.normal(size=(6, 3, 4)), rng.normal(size=(12, 5)), rng.normal(size=5)
        z = rng.normal(size=(6, 5))
        for activation in sorted(ACTIVATIONS):
            yield Sample(x, w, b, z, activation=activation)
        yield Sample(x, w, b, None, activation="relu")
        yield Sample(x, w, None, z, activation="identity")
        yield Sample(x, rng.normal(size=(4, 5)), None, None, base_axis=2, activation="tanh")


@op("batch_matmul_bias", narrow=True)
class batch_matmul_bias:
    """batch_matmul(a, b) + bias, whose leading axes may be others than those of the product.

    Args:
        a, b, transpose_a, transpose_b: As for `batch_matmul`.
        bias: One value for each column of the product; its other axes have size 1.
        shape: Of the result: that of the product with other axes before the last.
    """

    shape: tuple[int, ...]
    transpose_a: bool = False
    transpose_b: bool = False

    def infer(self, a, b, bias):
        y = self._product().infer(a, b)
        columns = y.shape[-1]
        if bias.size != columns or bias.shape[-1:] != (columns,):
            raise ShapeError(
                f"batch_matmul_bias: bias {bias} must have {columns} values along its last axis"
            )
        if y.with_shape(self.shape).size != y.size or self.shape[-1:] != (columns,):
            raise ShapeError(f"batch_matmul_bias: shape {self.shape} is not one of {y}")
        return y.with_shape(self.shape)

    def _product(self):
        return batch_matmul.attrs(transpose_a=self.transpose_a, transpose_b=self.transpose_b)

    def decompose(self, a, b, bias):
        y = batch_matmul(a, b, transpose_a=self.transpose_a, transpose_b=self.transpose_b)
        ones = (1,) * (len(self.shape) - 1)
        return add2(reshape(y, self.shape), reshape(bias, (*ones, self.shape[-1])))

    def cost(self, a, b, bias):
        return self._product().cost(a, b)

    def samples(rng):
        a, b, bias = rng.normal(size=(6, 4)), rng.normal(size=(5, 4)), rng.normal(size=(1, 5))
        yield Sample(a, b, bias, shape=(2, 3, 5), transpose_b=True)
        a, b = rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 4, 5))
        yield Sample(a, b, np.ones((1, 1, 5)), shape=(2, 3, 5), transpose_a=True)
