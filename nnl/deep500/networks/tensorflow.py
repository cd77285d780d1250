# SPDX-License-Identifier: Apache-2.0
"""TensorFlow: eager, or the whole graph in one tf.function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import tensorflow as tf

from nnl.converters.onnx.file.tensors import dtype_of_code
from nnl.deep500.arrays import ArrayVisitor
from nnl.deep500.arrays.windows import window
from nnl.deep500.contract import GRADIENT, NativeTraining
from nnl.deep500.execution import Values, VisitorNetwork
from nnl.deep500.operation import Operation

_REDUCE = {
    "sum": tf.reduce_sum,
    "mean": tf.reduce_mean,
    "prod": tf.reduce_prod,
    "max": tf.reduce_max,
    "min": tf.reduce_min,
}
_SCATTER = {
    "add": tf.tensor_scatter_nd_add,
    "max": tf.tensor_scatter_nd_max,
    "min": tf.tensor_scatter_nd_min,
    "none": tf.tensor_scatter_nd_update,
}


def _divide(x: Any, y: Any) -> Any:
    return x / y if x.dtype.is_floating else tf.truncatediv(x, y)


def _called(function: Any, inputs: Sequence[Any], dtypes: list[Any]) -> list[Any]:
    """A function of a list of numpy arrays; TensorFlow gives one output without its list."""
    outs = tf.numpy_function(lambda *a: function(a), inputs, dtypes)
    return outs if isinstance(outs, (list, tuple)) else [outs]


def _padding(sizes: Any, kernel: Any, strides: Any, dilations: Any, before: Any, after: Any) -> Any:
    """The name of these pads at TensorFlow, whose convolutions are twice as fast with it."""
    if not any((*before, *after)):
        return "VALID"
    axes = zip(sizes, kernel, strides, dilations, before, after, strict=True)
    for n, k, s, d, low, high in axes:
        total = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        if (low, high) != (total // 2, total - total // 2):
            return None
    return "SAME"


class TensorFlowVisitor(ArrayVisitor):
    """ONNX's operators as calls of TensorFlow."""

    simple: dict[str, Callable[..., Any]] = {
        **{
            name: getattr(tf.math, name.lower())
            for name in (
                *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh"),
                *("Erf", "Exp", "Floor", "Log", "Reciprocal", "Sigmoid", "Sign", "Sin", "Sinh"),
                *("Sqrt", "Tan", "Tanh"),
            )
        },
        **{"Sub": tf.subtract, "Mul": tf.multiply, "Div": _divide},
        **{"Neg": tf.negative, "Round": tf.round, "IsNaN": tf.math.is_nan, "Det": tf.linalg.det},
        **{"And": tf.logical_and, "Or": tf.logical_or, "Xor": tf.math.logical_xor},
        **{"Not": tf.logical_not, "BitwiseAnd": tf.bitwise.bitwise_and, "Where": tf.where},
        **{"BitwiseOr": tf.bitwise.bitwise_or, "BitwiseXor": tf.bitwise.bitwise_xor},
        **{"BitwiseNot": tf.bitwise.invert, "Equal": tf.equal, "Less": tf.less},
        **{"Greater": tf.greater, "LessOrEqual": tf.less_equal, "Relu": tf.nn.relu},
        "GreaterOrEqual": tf.greater_equal,
        "Pow": lambda x, y: tf.cast(tf.pow(x, tf.cast(y, x.dtype)), x.dtype),
        "Max": lambda *xs: reduce(tf.maximum, xs),
        "Min": lambda *xs: reduce(tf.minimum, xs),
    }

    def constant(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return tf.constant(value)
        if isinstance(value, list):
            return [self.constant(v) for v in value]
        if value is None or tf.is_tensor(value):
            return value
        return tf.constant(value)

    def host(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.host(v) for v in value]
        if not tf.is_tensor(value):
            return value
        found = tf.get_static_value(value)
        if found is None:
            raise ValueError("a shape or an index depends on values that the graph does not know")
        return np.asarray(found)

    def own(self, node: Operation, *inputs: Any) -> Any:
        shapes = node.output_shapes(*[tuple(x.shape) for x in inputs])
        kind = inputs[0].dtype

        @tf.custom_gradient
        def call(*xs: Any) -> Any:
            outs = _called(node.computed, xs, [kind] * len(shapes))
            outs = [tf.ensure_shape(y, s) for y, s in zip(outs, shapes, strict=True)]

            def backward(*grads: Any) -> Any:
                n, m = len(xs), len(outs)

                def body(a: Any) -> Any:
                    found = node.gradients(a[:n], a[n : n + m], a[n + m :])
                    return [g.astype(x.dtype) for g, x in zip(found, a[:n], strict=True)]

                found = _called(body, [*xs, *outs, *grads], [x.dtype for x in xs])
                return [tf.ensure_shape(g, x.shape) for g, x in zip(found, xs, strict=True)]

            return tuple(outs) if len(outs) > 1 else outs[0], backward

        return call(*inputs)

    # ---- primitives ----

    def dtype(self, x: Any) -> Any:
        return np.dtype(x.dtype.as_numpy_dtype)

    def cast(self, x: Any, dtype: Any) -> Any:
        return tf.cast(x, tf.as_dtype(np.dtype(dtype)))

    def shape(self, x: Any) -> tuple[int, ...]:
        return tuple(x.shape)

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        return tf.reshape(x, [int(n) for n in shape])

    def transpose(self, x: Any, axes: Sequence[int]) -> Any:
        return tf.transpose(x, list(axes))

    def concatenate(self, xs: Sequence[Any], axis: int) -> Any:
        return tf.concat(list(xs), axis)

    def broadcast_to(self, x: Any, shape: Sequence[int]) -> Any:
        return tf.broadcast_to(x, list(shape))

    def where(self, c: Any, x: Any, y: Any) -> Any:
        return tf.where(c, x, y)

    def take(self, x: Any, index: Any, axis: int) -> Any:
        return tf.gather(x, index, axis=axis)

    def gather_nd(self, x: Any, index: Any) -> Any:
        return tf.gather_nd(x, index)

    def scatter_nd(self, x: Any, index: Any, updates: Any, how: str) -> Any:
        if how == "mul":
            raise NotImplementedError("TensorFlow has no scatter that multiplies")
        return _SCATTER[how](x, index, updates)

    def flip(self, x: Any, axes: Sequence[int]) -> Any:
        return tf.reverse(x, list(axes))

    def pad(self, x: Any, pads: Sequence[tuple[int, int]], value: Any) -> Any:
        return tf.pad(x, [list(p) for p in pads], constant_values=tf.cast(value, x.dtype))

    def reduce(self, how: str, x: Any, axes: Sequence[int], keep: bool) -> Any:
        if x.dtype == tf.bool:
            return tf.cast(self.reduce(how, tf.cast(x, tf.int32), axes, keep), tf.bool)
        return _REDUCE[how](x, list(axes), keep)

    def arg(self, how: str, x: Any, axis: int) -> Any:
        return (tf.argmax if how == "max" else tf.argmin)(x, axis)

    def cumulative(self, how: str, x: Any, axis: int) -> Any:
        return (tf.cumsum if how == "sum" else tf.math.cumprod)(x, axis)

    def top(self, x: Any, k: int, largest: bool) -> tuple[Any, Any]:
        values, index = tf.math.top_k(x if largest else -x, k)
        return (values if largest else -values), index

    def matmul(self, x: Any, y: Any) -> Any:
        return tf.matmul(x, y)

    def visit_MatMul(self, node: Any, x: Any, y: Any) -> Any:
        if len(x.shape) == 1 or len(y.shape) == 1:
            wide = x[None] if len(x.shape) == 1 else x
            z = tf.matmul(wide, y[:, None] if len(y.shape) == 1 else y)
            z = z[..., 0] if len(y.shape) == 1 else z
            return tf.squeeze(z, -1 if len(y.shape) == 1 else -2) if len(x.shape) == 1 else z
        return tf.matmul(x, y)

    def einsum(self, equation: str, *xs: Any) -> Any:
        return tf.einsum(equation, *xs)

    def sqrt(self, x: Any) -> Any:
        return tf.sqrt(x)

    def rounded(self, x: Any) -> Any:
        return tf.round(x)

    def softmax(self, x: Any, axis: int) -> Any:
        return tf.nn.softmax(x, axis)

    def fourier(self, x: Any, n: int, axis: int, inverse: bool) -> Any:
        z, back = self.last(tf.complex(x[..., 0], x[..., 1]), axis)
        short = max(0, n - z.shape[-1])
        z = tf.pad(z[..., :n], [[0, 0]] * (len(z.shape) - 1) + [[0, short]])
        y = tf.transpose((tf.signal.ifft if inverse else tf.signal.fft)(z), back)
        return tf.stack([tf.math.real(y), tf.math.imag(y)], -1)

    # TensorFlow computes with channels last, ONNX with channels first. In a graph a value is kept
    # in both orders: what nothing reads is not computed.

    def _last(self, x: Any) -> Any:
        kept = getattr(x, "channels_last", None)
        return tf.transpose(x, [0, *range(2, len(x.shape)), 1]) if kept is None else kept

    def _first(self, y: Any) -> Any:
        n = len(y.shape)
        x = tf.transpose(y, [0, n - 1, *range(1, n - 1)])
        if not tf.executing_eagerly():
            x.channels_last = y
        return x

    def elementwise(self, call: Callable[..., Any], *xs: Any) -> Any:
        """A call in the order that all of its inputs are there in."""
        kept = [getattr(x, "channels_last", None) for x in xs]
        if any(y is None for y in kept) or len({len(x.shape) for x in xs}) > 1:
            return call(*xs)
        return self._first(call(*kept))

    def visit_Relu(self, node: Any, x: Any) -> Any:
        return self.elementwise(tf.nn.relu, x)

    def visit_Add(self, node: Any, x: Any, y: Any) -> Any:
        return self.elementwise(tf.add, x, y)

    def convolve(self, x: Any, w: Any, strides: Any, dilations: Any, group: int) -> Any:
        # its kernels on a CPU want channels last, no groups, and strides or dilations, not both
        n = len(strides)
        kernel = tf.transpose(w, [*range(2, 2 + n), 1, 0])
        plain = max(strides) == 1 or max(dilations) == 1
        steps = list(strides) if plain else [1] * n
        xs = tf.split(self._last(x), group, -1)
        ws = tf.split(kernel, group, -1)
        ys = [
            tf.nn.convolution(a, b, steps, "VALID", dilations=list(dilations))
            for a, b in zip(xs, ws, strict=True)
        ]
        y = ys[0] if group == 1 else tf.concat(ys, -1)
        if not plain:
            y = y[(slice(None), *[slice(None, None, s) for s in strides])]
        return self._first(y)

    def largest(self, x: Any, kernel: Any, strides: Any, dilations: Any) -> tuple[Any, ...]:
        kept = x.dtype
        wide = x if kept.is_floating else tf.cast(x, tf.float32)
        plain = max(dilations) == 1
        y = tf.nn.pool(
            self._last(wide),
            list(kernel),
            "MAX",
            list(strides) if plain else [1] * len(strides),
            "VALID",
            dilations=None if plain else list(dilations),
        )
        if not plain:
            y = y[(slice(None), *[slice(None, None, s) for s in strides])]
        return (tf.cast(self._first(y), kept),)

    # ---- what TensorFlow has whole ----

    def visit_Conv(self, node: Any, x: Any, w: Any, b: Any = None) -> Any:
        sizes, kernel = self.shape(x)[2:], self.shape(w)[2:]
        strides, dilations, before, after = window(node, sizes, kernel)
        named = _padding(sizes, kernel, strides, dilations, before, after)
        both = max(strides) > 1 and max(dilations) > 1
        if len(sizes) != 2 or node.group > 1 or both or named is None:
            return super().visit_Conv(node, x, w, b)
        kernel = tf.transpose(w, [2, 3, 1, 0])
        y = tf.nn.conv2d(self._last(x), kernel, strides, named, dilations=dilations)
        return self._first(y if b is None else tf.nn.bias_add(y, b))

    def visit_MaxPool(self, node: Any, x: Any) -> Any:
        if len(node.outputs) > 1:
            raise NotImplementedError("TensorFlow on a CPU gives no indices of pooling")
        return super().visit_MaxPool(node, x)

    def prepare_Gemm(self, node: Any) -> Any:
        if (node.alpha, node.beta) != (1, 1):
            return None
        turned_a, turned_b = bool(node.transA), bool(node.transB)

        def gemm(a: Any, b: Any, c: Any = None) -> Any:
            y = tf.matmul(a, b, turned_a, turned_b)
            return y if c is None else y + c

        return gemm

    def visit_Mod(self, node: Any, x: Any, y: Any) -> Any:
        return tf.truncatemod(x, y) if node.fmod else tf.math.floormod(x, y)

    def visit_LogSoftmax(self, node: Any, x: Any) -> Any:
        if node.since < 13:
            return tf.math.log(self.visit_Softmax(node, x))
        return tf.nn.log_softmax(x, node.axis)

    def visit_Gelu(self, node: Any, x: Any) -> Any:
        return tf.nn.gelu(x, node.approximate == "tanh")

    def visit_SoftmaxCrossEntropyLoss(self, node: Any, x: Any, t: Any, w: Any = None) -> Any:
        plain = w is None and node.reduction == "mean" and len(node.outputs) == 1
        if not plain or len(x.shape) != 2 or "ignore_index" in node.attributes:
            return NotImplemented
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(t, x))

    def visit_BitCast(self, node: Any, x: Any) -> Any:
        return tf.bitcast(x, tf.as_dtype(dtype_of_code(node.to, "BitCast")))

    def visit_BitShift(self, node: Any, x: Any, y: Any) -> Any:
        left = node.direction == "LEFT"
        return (tf.bitwise.left_shift if left else tf.bitwise.right_shift)(x, y)


class TensorFlowNetwork(VisitorNetwork):
    """A model on TensorFlow.

    Args:
        device: "cpu", or "compiled" for one tf.function.
    """

    backend, package, devices = "tensorflow", "tensorflow", ("cpu", "compiled")
    visitor = TensorFlowVisitor()

    def __init__(self, model: Any, device: str = "", trainable: Any = None) -> None:
        self.compiled = device == "compiled"
        super().__init__(model, device, trainable)

    def constant(self, value: Any) -> Any:
        return self.visitor.constant(value)

    def variable(self, value: Any) -> Any:
        return tf.Variable(np.array(value))

    def _given(self, inputs: Values) -> Values:
        return {
            n: tf.constant(v) if type(v) is np.ndarray else self.constant(v)
            for n, v in inputs.items()
        }

    def array(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.array(v) for v in value]
        return None if value is None else np.asarray(value.numpy())

    def _build(self) -> None:
        super()._build()
        self.grads: Sequence[Any] = ()  # in the order of the parameters
        self._forward: Any = self._plain
        self._step: Any = self._train
        if self.compiled:
            self._forward, self._step = tf.function(self._plain), tf.function(self._train)

    def _plain(self, inputs: Values) -> list[Any]:
        values = {n: tf.convert_to_tensor(v) for n, v in self.values.items()}
        return self.machine.run(self.graph, {**self.constants, **values, **inputs})

    def _train(self, inputs: Values) -> tuple[list[Any], list[Any]]:
        with tf.GradientTape() as tape:
            outs = self._plain(inputs)
            loss = outs[self._loss_at]
        return outs, tape.gradient(loss, list(self.values.values()))

    def _run(self, inputs: Values) -> list[Any]:
        return list(self._forward(inputs))

    def _stepped(self, step: Any, inputs: Values) -> dict[str, Any]:
        """The outputs of a step, whose gradients are kept."""
        given, self.grads = self._given(inputs), ()  # their memory serves the new ones
        outs, self.grads = step(given)
        return self._results(outs)

    def _backprop(self, inputs: Values) -> dict[str, Any]:
        return self._stepped(self._step, inputs)

    def _read(self, name: str) -> Any:
        own = name.removesuffix(GRADIENT)
        v = self.values[own]
        if own == name:
            return v.numpy()
        g = dict(zip(self.values, self.grads, strict=False)).get(own)
        return (
            np.zeros(v.shape, v.dtype.as_numpy_dtype)
            if g is None
            else tf.convert_to_tensor(g).numpy()
        )

    def _write(self, name: str, value: Any) -> None:
        self.values[name].assign(value)

    def _need_compiled(self) -> None:
        if not self.compiled:
            raise NotImplementedError(
                "tensorflow computes by its visitor, call by call: tensorflow:compiled has a plain "
                "program to compare with"
            )

    def plain_inference(self, inputs: Any) -> Any:
        self._need_compiled()
        self.setup()
        values, call = self._bound(inputs), tf.function(self._plain)
        if not all(isinstance(v, np.ndarray) for v in values.values()):
            return super().plain_inference(inputs)
        return lambda: [y.numpy() for y in call({n: tf.constant(v) for n, v in values.items()})]

    def plain_training(self, rule: str, **settings: float) -> Any:
        """A tf.function of the graph, the gradients and the update."""
        self._need_compiled()
        self.setup()
        at, names = self._loss_at, [v.name for v in self.graph.inputs]
        whole = self._whole(self._optimizer(rule, settings)) if rule else self._train
        step = tf.function(whole)

        def train(inputs: Any) -> float:
            outs, _ = step({n: tf.constant(inputs[n]) for n in names})
            return float([y.numpy() for y in outs][at])

        return train

    def _whole(self, optimizer: Any) -> Any:
        """Forward, backward and update in one function."""
        variables = list(self.values.values())

        def whole(inputs: Values) -> tuple[list[Any], list[Any]]:
            outs, grads = self._train(inputs)
            optimizer.apply_gradients(zip(grads, variables, strict=True))
            return outs, grads

        return whole

    def native_optimizer(self, rule: str, **s: float) -> NativeTraining:
        self.setup()
        variables = list(self.values.values())
        optimizer = self._optimizer(rule, s)

        def update(grads: Sequence[Any]) -> None:
            optimizer.apply_gradients(zip(grads, variables, strict=True))

        updated = tf.function(update) if self.compiled else update
        parts = NativeTraining(
            lambda x: self._stepped(self._step, self._bound(x)),
            lambda: updated(self.grads),
            change_gradients=self._change_gradients,
            change_parameters=self._change_parameters,
        )
        if self.compiled:
            whole = tf.function(self._whole(optimizer))
            parts.whole = lambda x: self._stepped(whole, self._bound(x))
        return parts

    # Nobody writes to TensorFlow's tensors: what changes them gets copies.

    def _change_gradients(self, change: Callable[[list[Any]], None]) -> None:
        arrays = [self._read(name + GRADIENT) for name in self.values]
        change(arrays)
        self.grads = [tf.constant(a) for a in arrays]

    def _change_parameters(self, change: Callable[[list[Any]], None]) -> None:
        arrays = [v.numpy() for v in self.values.values()]
        change(arrays)
        for v, a in zip(self.values.values(), arrays, strict=True):
            v.assign(a)

    def _optimizer(self, rule: str, s: dict[str, float]) -> Any:
        k = tf.keras.optimizers
        makers: dict[str, Callable[[], Any]] = {
            "sgd": lambda: k.SGD(s["lr"]),
            "momentum": lambda: k.SGD(s["lr"], s["momentum"]),
            "nesterov": lambda: k.SGD(s["lr"], s["momentum"], nesterov=True),
            # its epsilon stands under the root
            "adagrad": lambda: k.Adagrad(s["lr"], 0.0, epsilon=s["eps"] ** 2),
            "adam": lambda: k.Adam(s["lr"], s["beta1"], s["beta2"], s["eps"]),
        }
        if rule not in makers:
            return super().native_optimizer(rule, **s)
        optimizer = makers[rule]()
        optimizer.build(list(self.values.values()))
        return optimizer
