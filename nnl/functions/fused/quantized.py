# SPDX-License-Identifier: Apache-2.0
"""Products of numbers of 8 bits: what stands for a real number is scale (number - zero point)."""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import ShapeError
from nnl.core.ops.op import OPS, Cost, Sample, op
from nnl.functions.affine import affine, batch_matmul
from nnl.functions.arithmetic import add2, mul2
from nnl.functions.fused.activation import activate, check_activation
from nnl.functions.fused.convolution import ACTIVATIONS, Fused, convolution_fused
from nnl.functions.fused.product import ACTIVATIONS as PRODUCT_ACTIVATIONS
from nnl.functions.linear_quantization import dequantize_linear, quantize_linear_op
from nnl.functions.reduction import reshape

BYTES = {"int8": np.int8, "uint8": np.uint8}


class Quantized:
    """What products have in common.

    dtype is the element type of the result: "int8", "uint8", or "float32" without y_scale.
    """

    def result(self, y, x_scale, w_scale, maps, y_scale, y_zero):
        """The spec of the result.

        Raises:
            ShapeError, ValueError: Scales, zero points and dtype do not go with each other.
        """
        for name, s in (("x_scale", x_scale), ("y_scale", y_scale), ("y_zero", y_zero)):
            if s is not None and s.size != 1:
                raise ShapeError(f"{self.op.name}: {name} {s} must be one number")
        if w_scale.size not in (1, maps):
            raise ShapeError(f"{self.op.name}: w_scale {w_scale} must have 1 or {maps} numbers")
        if self.dtype not in (BYTES if y_scale is not None else ("float32",)):
            raise ValueError(
                f"{self.op.name}: dtype is {self.dtype!r} "
                f"{'with' if y_scale is not None else 'without'} y_scale"
            )
        return y.with_dtype(BYTES.get(self.dtype, x_scale.dtype))

    def real(self, x, scale, zero, axis=None):
        """The real numbers that numbers of 8 bits stand for."""
        shape = [1] * len(x.shape)
        if scale.size > 1:
            shape[axis] = scale.size
        zero = OPS["mul_scalar"](scale, 0.0) if zero is None else zero
        zero_shape = shape if zero.size > 1 else [1] * len(shape)
        return dequantize_linear(x, reshape(scale, shape), reshape(zero, zero_shape))

    def stored(self, y, scale, zero):
        """What stands for real numbers; these themselves without a scale."""
        if scale is None:
            return y
        ones = (1,) * len(y.shape)
        zero = OPS["mul_scalar"](scale, 0.0) if zero is None else zero
        y = quantize_linear_op(
            y, reshape(scale, ones), reshape(zero, ones), round_mode="HALF_TO_EVEN",
            dtype=np.dtype(self.dtype).num,
        )  # fmt: skip
        return OPS["cast"](y, dtype=self.dtype)


@op("quantized_convolution", keep=("x", "weight"))
class quantized_convolution(Quantized, Fused):
    """activation(convolution(x, weight) + bias + z) of numbers of 8 bits, as such.

    Sums are taken in int32; then bias and z, which are real numbers, the activation, and rounding,
    halves to even.

    Args:
        x: int8 or uint8. weight: int8; both otherwise as for `convolution`.
        bias, z: As for `convolution_fused`; optional.
        x_scale, x_zero, y_scale, y_zero: One number each. Zero points left out are 0; without
            y_scale the result are real numbers.
        w_scale: One number, or one for each map.
        w_zero: Left out; for weights of products only.
        activation, alpha, packed, w_shape: As for `convolution_fused`.
        dtype: "int8", "uint8" or "float32": of the result.
    """

    packed: bool = False
    w_shape: tuple[int, ...] = ()
    dtype: str = "float32"
    optional = ("bias", "z", "x_zero", "w_zero")

    def infer(
        self, x, weight, bias, z, x_scale, x_zero, w_scale, w_zero=None, y_scale=None, y_zero=None
    ):
        check_activation(self.op, self.activation, ACTIVATIONS)
        own = self.floats().infer(x.with_dtype(np.float32), weight, bias, z)
        maps = self.w_shape[0] if self.packed else weight.shape[0]
        if w_zero is not None:
            raise ValueError("quantized_convolution: weights have no zero point")
        return self.result(own, x_scale, w_scale, maps, y_scale, y_zero)

    def floats(self):
        own = {k: v for k, v in self.as_dict().items() if k != "dtype"}
        return convolution_fused.attrs(**own)

    def decompose(
        self, x, weight, bias, z, x_scale, x_zero, w_scale, w_zero=None, y_scale=None, y_zero=None
    ):
        w = self.real(weight, w_scale, w_zero, 0)
        y = self.floats().decompose(self.real(x, x_scale, x_zero), w, bias, z)
        return self.stored(y, y_scale, y_zero)

    def cost(self, x, weight, bias, z, x_scale, x_zero, w_scale, w_zero=None, y_scale=None,
             y_zero=None):  # fmt: skip
        return self.floats().cost(x, weight, bias, z)

    def samples(rng):
        one = np.array
        x = rng.integers(0, 256, (2, 4, 7, 6)).astype(np.uint8)
        w = rng.integers(-127, 128, (6, 4, 3, 3)).astype(np.int8)
        b, z = rng.normal(size=6), rng.normal(size=(2, 6, 5, 4))
        scales = one([0.02]), one([113.0]), rng.uniform(0.004, 0.008, 6)
        out = one([0.11]), one([120.0])
        yield undifferentiated(x, w, b, None, *scales, None, *out, dtype="uint8")
        yield undifferentiated(x, w, b, z, *scales, None, *out, dtype="uint8", activation="relu")
        yield undifferentiated(x, w, None, z, *scales)
        yield undifferentiated(
            x, w, b, None, one([0.02]), None, one([0.006]), None, one([0.1]), dtype="int8",
            stride=(2, 1), pad=(1, 2), activation="relu6",
        )  # fmt: skip
        w = rng.integers(-127, 128, (4, 1, 3, 3)).astype(np.int8)
        yield undifferentiated(
            x.view(np.int8), w, b[:4], None, one([0.02]), one([-3.0]), scales[2][:4], None, *out,
            dtype="uint8", group=4, pad=(1, 1),
        )  # fmt: skip


class Product(Quantized):
    optional = ("bias", "z", "x_zero", "w_zero")

    def weight_spec(self, weight):
        return weight.with_shape(self.w_shape) if self.packed else weight

    def decompose(
        self, x, weight, bias, z, x_scale, x_zero, w_scale, w_zero=None, y_scale=None, y_zero=None
    ):
        if self.packed:
            raise NotImplementedError(f"{self.op.name}: packed weights are known to kernels only")
        axis = -2 if getattr(self, "transpose_b", False) else -1
        y = self.product(self.real(x, x_scale, x_zero), self.real(weight, w_scale, w_zero, axis))
        if bias is not None:
            y = add2(y, reshape(bias, (1,) * (len(y.shape) - 1) + (bias.size,)))
        y = activate(self.activation, y if z is None else add2(y, z))
        return self.stored(y, y_scale, y_zero)

    def infer(
        self, x, weight, bias, z, x_scale, x_zero, w_scale, w_zero=None, y_scale=None, y_zero=None
    ):
        check_activation(self.op, self.activation, PRODUCT_ACTIVATIONS)
        y = self.own().infer(x.with_dtype(np.float32), self.weight_spec(weight))
        if bias is not None and bias.size != y.shape[-1]:
            raise ShapeError(f"{self.op.name}: bias {bias} must have {y.shape[-1]} numbers")
        if z is not None and z.shape != y.shape:
            raise ShapeError(f"{self.op.name}: z {z} must have the shape of the result {y}")
        return self.result(y, x_scale, w_scale, y.shape[-1], y_scale, y_zero)

    def cost(self, x, weight, bias, z, x_scale, x_zero, w_scale, w_zero=None, y_scale=None,
             y_zero=None):  # fmt: skip
        return self.own().cost(x, self.weight_spec(weight))


@op("quantized_affine", keep=("x", "weight"))
class quantized_affine(Product):
    """activation(affine(x, weight, bias) + z) of numbers of 8 bits; see `quantized_convolution`.

    Args:
        x, weight, bias, base_axis: As for `affine`, whose weight is a matrix here.
        w_zero: One number, if weights have a zero point.
        activation: As for `affine_fused`.
        packed: Whether weight is what `pack_weights` has made. w_shape: its shape before.
    """

    base_axis: int = 1
    activation: str = "identity"
    packed: bool = False
    w_shape: tuple[int, ...] = ()
    dtype: str = "float32"

    def own(self):
        return affine.attrs(base_axis=self.base_axis)

    def product(self, x, weight):
        return affine(x, weight, base_axis=self.base_axis)

    def samples(rng):
        yield from product_samples(rng, (3, 2, 8), (16, 5))


@op("quantized_batch_matmul", keep=("x", "weight"))
class quantized_batch_matmul(Product):
    """activation(batch_matmul(x, weight) + bias + z) of numbers of 8 bits; see `quantized_affine`.

    Args:
        x, weight, transpose_a, transpose_b: As for `batch_matmul`. bias: (N,).
    """

    transpose_a: bool = False
    transpose_b: bool = False
    activation: str = "identity"
    packed: bool = False
    w_shape: tuple[int, ...] = ()
    dtype: str = "float32"

    def own(self):
        return batch_matmul.attrs(transpose_a=self.transpose_a, transpose_b=self.transpose_b)

    def product(self, x, weight):
        return batch_matmul(x, weight, **self.own().as_dict())

    def samples(rng):
        yield from product_samples(rng, (2, 6, 16), (2, 16, 5))
        yield from product_samples(rng, (2, 3, 6, 16), (1, 1, 5, 16), transpose_b=True)


def undifferentiated(*inputs, **attrs):
    return Sample(*inputs, grad=(False,) * len(inputs), **attrs)


def product_samples(rng, x_shape, w_shape, **attrs):
    x = rng.integers(0, 256, x_shape).astype(np.uint8)
    w = rng.integers(-127, 128, w_shape).astype(np.int8)
    b, scales = rng.normal(size=5), rng.uniform(0.004, 0.008, 5)
    x_at, out = (np.array([0.02]), np.array([113.0])), (np.array([0.13]), np.array([120.0]))
    yield undifferentiated(x, w, b, None, *x_at, scales, None, *out, dtype="uint8", **attrs)
    yield undifferentiated(x, w, b, None, *x_at, scales, activation="relu", **attrs)
    w_at = np.array([0.006]), np.array([5.0])
    yield undifferentiated(x.view(np.int8), w, b, None, *x_at, *w_at, *out, dtype="int8", **attrs)


@op("quantized_pair", keep=("x0", "x1"))
class quantized_pair(Quantized):
    """The sum or product of two arrays of 8 bits, as such: rounded once, halves to even.

    Args:
        x0: int8 or uint8. x1: either, of the same shape, or with one number for each sample and
            channel.
        x0_scale, x0_zero, x1_scale, x1_zero, y_scale, y_zero: One number each.
        multiply: Whether it is the product.
        activation: "identity" or "relu".
        dtype: "int8" or "uint8": of the result.
    """

    multiply: bool = False
    activation: str = "identity"
    dtype: str = "uint8"
    follows_order = True

    def infer(self, x0, x1, x0_scale, x0_zero, x1_scale, x1_zero, y_scale, y_zero):
        check_activation(self.op, self.activation, ("identity", "relu"))
        thin = (*x0.shape[:2], *[1] * (len(x0.shape) - 2))
        if x1.shape not in (x0.shape, thin):
            raise ShapeError(f"quantized_pair: x1 {x1} must have the shape of x0 {x0}, or {thin}")
        for s in (x0_zero, x1_scale, x1_zero):
            if s.size != 1:
                raise ShapeError(f"quantized_pair: scale or zero point {s} must be one number")
        return self.result(x0, x0_scale, x1_scale, 1, y_scale, y_zero)

    def decompose(self, x0, x1, x0_scale, x0_zero, x1_scale, x1_zero, y_scale, y_zero):
        pair = self.real(x0, x0_scale, x0_zero), self.real(x1, x1_scale, x1_zero)
        y = (mul2 if self.multiply else add2)(*pair)
        return self.stored(activate(self.activation, y), y_scale, y_zero)

    def cost(self, x0, x1, x0_scale, x0_zero, x1_scale, x1_zero, y_scale, y_zero):
        return Cost(6 * x0.size, 2 * x0.nbytes + x1.nbytes)

    def samples(rng):
        x = rng.integers(0, 256, (2, 4, 5, 6)).astype(np.uint8)
        y, z = rng.integers(0, 256, x.shape).astype(np.uint8), x[:, :, :1, :1].copy()

        def numbers(*values):
            return [np.array([v]) for v in values]

        a, b, c = numbers(0.021, 113.0), numbers(0.034, 97.0), numbers(0.043, 120.0)
        yield undifferentiated(x, y, *a, *b, *c)
        yield undifferentiated(x, y.view(np.int8), *a, *numbers(0.03, -9.0), *c, activation="relu")
        yield undifferentiated(
            x.view(np.int8), y, *numbers(0.02, 3.0), *b, *numbers(0.05, -7.0), dtype="int8"
        )
        yield undifferentiated(x, y, *a, *b, *numbers(0.09, 120.0), multiply=True)
        yield undifferentiated(x, z, *a, *b, *numbers(0.09, 120.0), multiply=True)


@op("pack_weights", outputs=("packed",), keep=("weight",))
class pack_weights:
    """Weights in the order that the kernel of an op wants them, for plans that run it often.

    Args:
        weight: Input 1 of that op.
        of: Its name. nbytes: How many bytes its kernel takes: the result is that many uint8. Which
            ones is the library's affair, so there is no definition in numpy.
    """

    of: str
    nbytes: int = 0

    def infer(self, weight):
        return weight.with_shape((self.nbytes,)).with_dtype(np.uint8)

    def cost(self, weight):
        return Cost(0, weight.nbytes + self.nbytes)
