# SPDX-License-Identifier: Apache-2.0
"""A complete back end in numpy, to be read from top to bottom: what every other one is judged by.

Each method of the visitor gives (outputs, backward), where backward maps the gradients of the
outputs to those of the inputs. The network runs forward, remembers the backward functions, and
calls them from the last to the first. Nothing is fast here on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from nnl.converters.onnx.file.model import Node, StrictVisitor
from nnl.converters.onnx.file.tensors import dtype_of_code
from nnl.converters.onnx.importing.layers.convolution import window
from nnl.deep500.contract import GRADIENT, Network, listed
from nnl.deep500.operation import Operation

Backward = Callable[..., Any]


def fit(g: Any, x: Any) -> Any:
    """The gradient of an input that was broadcast: sums over what it was stretched along."""
    g = g.sum(tuple(range(g.ndim - x.ndim)))
    stretched = tuple(i for i, n in enumerate(x.shape) if n == 1 and g.shape[i] != 1)
    return g.sum(stretched, keepdims=True) if stretched else g


def windows(x: Any, kernel: Any, strides: Any, dilations: Any) -> Any:
    """All windows of the spatial axes, (N, C, *out, *kernel), as a view."""
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    axes = tuple(range(2, x.ndim))
    y = sliding_window_view(x, reach, axes)
    steps = [slice(None, None, s) for s in (1, 1, *strides, *dilations)]
    return y[tuple(steps)]


def unwindow(g: Any, shape: Any, kernel: Any, strides: Any, dilations: Any) -> Any:
    """The transpose of windows(): adds every window's numbers where they came from."""
    out = np.zeros(shape, g.dtype)
    n = len(kernel)
    for at in np.ndindex(*kernel):
        where = [slice(None), slice(None)]
        for i in range(n):
            start = at[i] * dilations[i]
            where.append(slice(start, start + (g.shape[2 + i] - 1) * strides[i] + 1, strides[i]))
        out[tuple(where)] += g[(slice(None),) * (2 + n) + at]
    return out


def cut(g: Any, before: Any, shape: Any) -> Any:
    """What remains of a padded array."""
    spatial = [slice(b, b + n) for b, n in zip(before, shape[2:], strict=True)]
    return g[(slice(None), slice(None), *spatial)]


def elementwise(f: Any, gradient: Any) -> Callable[..., Any]:
    """The method of a function of one array; gradient(x, y) is its derivative."""

    def method(self: Any, node: Node, x: Any) -> Any:
        y = f(x)
        return y, lambda g: (g * gradient(x, y),)

    return method


def compared(f: Any) -> Callable[..., Any]:
    """The method of a function that has no gradient."""
    return lambda self, node, *xs: (f(*xs), lambda g: (None,) * len(xs))


class ReferenceVisitor(StrictVisitor):
    """ONNX's operators in numpy with their gradients."""

    # ---- elementwise ----

    visit_Relu = elementwise(lambda x: np.maximum(x, 0), lambda x, y: x > 0)
    visit_Sigmoid = elementwise(lambda x: 1 / (1 + np.exp(-x)), lambda x, y: y * (1 - y))
    visit_Tanh = elementwise(np.tanh, lambda x, y: 1 - y * y)
    visit_Exp = elementwise(np.exp, lambda x, y: y)
    visit_Log = elementwise(np.log, lambda x, y: 1 / x)
    visit_Sqrt = elementwise(np.sqrt, lambda x, y: 0.5 / y)
    visit_Abs = elementwise(np.abs, lambda x, y: np.sign(x))
    visit_Neg = elementwise(np.negative, lambda x, y: x.dtype.type(-1))
    visit_Reciprocal = elementwise(lambda x: 1 / x, lambda x, y: -y * y)
    visit_Identity = elementwise(lambda x: x, lambda x, y: x.dtype.type(1))
    visit_Softplus = elementwise(lambda x: np.logaddexp(x, 0), lambda x, y: 1 / (1 + np.exp(-x)))
    visit_Equal = compared(np.equal)
    visit_Less = compared(np.less)
    visit_Greater = compared(np.greater)
    visit_Not = compared(np.logical_not)

    def visit_Add(self, node: Node, a: Any, b: Any) -> Any:
        return a + b, lambda g: (fit(g, a), fit(g, b))

    def visit_Sub(self, node: Node, a: Any, b: Any) -> Any:
        return a - b, lambda g: (fit(g, a), fit(-g, b))

    def visit_Mul(self, node: Node, a: Any, b: Any) -> Any:
        return a * b, lambda g: (fit(g * b, a), fit(g * a, b))

    def visit_Div(self, node: Node, a: Any, b: Any) -> Any:
        if a.dtype.kind in "iu":
            return (a / b).astype(a.dtype), lambda g: (None, None)
        return a / b, lambda g: (fit(g / b, a), fit(-g * a / (b * b), b))

    def visit_Pow(self, node: Node, a: Any, b: Any) -> Any:
        y = np.power(a, b).astype(a.dtype)

        def backward(g: Any) -> Any:
            log = np.log(np.where(a > 0, a, 1))  # where a <= 0 the exponent has no gradient
            return fit(g * b * np.power(a, b - 1), a), fit(g * y * log, b)

        return y, backward

    def visit_Sum(self, node: Node, *xs: Any) -> Any:
        return sum(xs[1:], xs[0]), lambda g: tuple(fit(g, x) for x in xs)

    def visit_Clip(self, node: Node, x: Any, low: Any = None, high: Any = None) -> Any:
        low = -math.inf if low is None else low
        high = math.inf if high is None else high
        inside = (x >= low) & (x <= high)
        return np.clip(x, low, high).astype(x.dtype), lambda g: (g * inside, None, None)

    def visit_LeakyRelu(self, node: Any, x: Any) -> Any:
        slope = np.where(x < 0, x.dtype.type(node.alpha), x.dtype.type(1))
        return x * slope, lambda g: (g * slope,)

    def visit_Where(self, node: Node, c: Any, a: Any, b: Any) -> Any:
        zero = np.zeros((), a.dtype)
        return np.where(c, a, b), lambda g: (
            None,
            fit(np.where(c, g, zero), a),
            fit(np.where(c, zero, g), b),
        )

    def visit_Dropout(self, node: Any, x: Any, ratio: Any = None, training: Any = None) -> Any:
        keep = np.ones(x.shape, x.dtype)
        rate = 0.5 if ratio is None else float(ratio)
        if training is not None and training and rate:
            random = np.random.RandomState(node.attributes.get("seed"))
            keep = ((random.uniform(0, 1, x.shape) >= rate) / (1 - rate)).astype(x.dtype)
        outs = (x * keep, keep != 0)[: len(node.outputs)]
        return outs, lambda g, *_: (g * keep, None, None)

    # ---- products ----

    def visit_MatMul(self, node: Node, a: Any, b: Any) -> Any:
        def backward(g: Any) -> Any:
            if a.ndim == 1 or b.ndim == 1:  # as matrices, then back
                m, n = np.atleast_2d(a), b[:, None] if b.ndim == 1 else b
                wide = g.reshape(np.matmul(m, n).shape)
                ga, gb = (
                    np.matmul(wide, np.swapaxes(n, -1, -2)),
                    np.matmul(m.swapaxes(-1, -2), wide),
                )
                return fit(ga, m).reshape(a.shape), fit(gb, n).reshape(b.shape)
            ga = np.matmul(g, np.swapaxes(b, -1, -2))
            return fit(ga, a), fit(np.matmul(np.swapaxes(a, -1, -2), g), b)

        return np.matmul(a, b), backward

    def visit_Gemm(self, node: Any, a: Any, b: Any, c: Any = None) -> Any:
        left, right = (a.T if node.transA else a), (b.T if node.transB else b)
        alpha, beta = a.dtype.type(node.alpha), a.dtype.type(node.beta)
        y = alpha * (left @ right) + (0 if c is None else beta * c)

        def backward(g: Any) -> Any:
            ga, gb = alpha * (g @ right.T), alpha * (left.T @ g)
            gc = None if c is None else fit(beta * g, c)
            return (ga.T if node.transA else ga), (gb.T if node.transB else gb), gc

        return y.astype(a.dtype), backward

    def visit_Conv(self, node: Any, x: Any, w: Any, b: Any = None) -> Any:
        kernel, group = w.shape[2:], node.group
        strides, dilations, before, after = window(node, x.shape[2:], kernel)
        wide = np.pad(x, [(0, 0), (0, 0), *zip(before, after, strict=True)])
        cols = windows(wide, kernel, strides, dilations)
        out, area = cols.shape[2 : 2 + len(kernel)], math.prod(kernel)
        # (N, group, C / group, places, taps) and (group, M / group, C / group, taps)
        split = cols.reshape(len(x), group, -1, math.prod(out), area)
        weights = w.reshape(group, -1, w.shape[1], area)
        y = np.einsum("ngcok,gmck->ngmo", split, weights, optimize=True)
        y = y.reshape(len(x), -1, *out)
        column = (-1, *[1] * len(kernel))

        def backward(g: Any) -> Any:
            flat = g.reshape(len(x), group, -1, math.prod(out))
            gcols = np.einsum("ngmo,gmck->ngcok", flat, weights, optimize=True)
            gwide = unwindow(gcols.reshape(cols.shape), wide.shape, kernel, strides, dilations)
            gw = np.einsum("ngmo,ngcok->gmck", flat, split, optimize=True).reshape(w.shape)
            gb = None if b is None else g.sum((0, *range(2, g.ndim)))
            return cut(gwide, before, x.shape), gw, gb

        return (y if b is None else y + b.reshape(column)), backward

    # ---- pooling ----

    def visit_MaxPool(self, node: Any, x: Any) -> Any:
        kernel = node.kernel_shape
        strides, dilations, before, after = self._plain(node, x, kernel)
        pads = [(0, 0), (0, 0), *zip(before, after, strict=True)]
        wide = np.pad(x, pads, constant_values=-math.inf)
        cols = windows(wide, kernel, strides, dilations)
        flat = cols.reshape(*cols.shape[: x.ndim], -1)
        best = flat.argmax(-1)[..., None]

        def backward(g: Any) -> Any:
            gflat = np.zeros(flat.shape, g.dtype)
            np.put_along_axis(gflat, best, g[..., None], -1)
            gwide = unwindow(gflat.reshape(cols.shape), wide.shape, kernel, strides, dilations)
            return (cut(gwide, before, x.shape),)

        return np.take_along_axis(flat, best, -1)[..., 0], backward

    def visit_AveragePool(self, node: Any, x: Any) -> Any:
        kernel = node.kernel_shape
        strides, dilations, before, after = self._plain(node, x, kernel)
        pads = [(0, 0), (0, 0), *zip(before, after, strict=True)]
        axes = tuple(range(-len(kernel), 0))
        wide = np.pad(x, pads)
        counted = np.pad(np.ones_like(x), pads, constant_values=int(node.count_include_pad))
        cols = windows(wide, kernel, strides, dilations)
        count = windows(counted, kernel, strides, dilations).sum(axes)

        def backward(g: Any) -> Any:
            share = np.broadcast_to((g / count)[(..., *[None] * len(kernel))], cols.shape)
            return (cut(unwindow(share, wide.shape, kernel, strides, dilations), before, x.shape),)

        return cols.sum(axes) / count, backward

    def _plain(self, node: Any, x: Any, kernel: Any) -> Any:
        if node.attributes.get("ceil_mode", 0) or len(node.outputs) > 1:
            raise node.error("the reference pools without ceil_mode and indices")
        return window(node, x.shape[2:], kernel)

    def visit_GlobalAveragePool(self, node: Node, x: Any) -> Any:
        axes = tuple(range(2, x.ndim))
        share = x.dtype.type(1 / math.prod(x.shape[2:]))
        return x.mean(axes, keepdims=True), lambda g: (np.broadcast_to(g * share, x.shape),)

    # ---- normalisation and losses ----

    def visit_BatchNormalization(
        self, node: Any, x: Any, scale: Any, bias: Any, mean: Any, var: Any
    ) -> Any:
        axes, column = (0, *range(2, x.ndim)), (1, -1, *[1] * (x.ndim - 2))
        training = bool(node.attributes.get("training_mode", 0))
        m, v = (x.mean(axes), x.var(axes)) if training else (mean, var)
        deviation = np.sqrt(v + x.dtype.type(node.epsilon)).reshape(column)
        normal = (x - m.reshape(column)) / deviation
        y = normal * scale.reshape(column) + bias.reshape(column)
        keep = node.attributes.get("momentum", 0.9)
        outs = (y, mean * keep + m * (1 - keep), var * keep + v * (1 - keep))

        def backward(g: Any, *_: Any) -> Any:
            gn = g * scale.reshape(column)
            if training:
                gn = gn - gn.mean(axes, keepdims=True)
                gn = gn - normal * (gn * normal).mean(axes, keepdims=True)
            gx = gn / deviation
            gm, gv = -gx.sum(axes), -(gx * normal / deviation).sum(axes) / 2
            used = (None, None) if training else (gm, gv)
            return gx, (g * normal).sum(axes), g.sum(axes), *used

        return tuple(o.astype(x.dtype) for o in outs[: len(node.outputs)]), backward

    def visit_Softmax(self, node: Any, x: Any) -> Any:
        e = np.exp(x - x.max(node.axis, keepdims=True))
        y = e / e.sum(node.axis, keepdims=True)
        return y, lambda g: (y * (g - (g * y).sum(node.axis, keepdims=True)),)

    def visit_LogSoftmax(self, node: Any, x: Any) -> Any:
        z = x - x.max(node.axis, keepdims=True)
        y = z - np.log(np.exp(z).sum(node.axis, keepdims=True))
        return y, lambda g: (g - np.exp(y) * g.sum(node.axis, keepdims=True),)

    def visit_SoftmaxCrossEntropyLoss(self, node: Any, x: Any, t: Any, weight: Any = None) -> Any:
        if weight is not None or node.reduction == "none" or len(node.outputs) > 1:
            raise node.error("the reference computes sums and means without weights")
        z = x - x.max(1, keepdims=True)
        log = z - np.log(np.exp(z).sum(1, keepdims=True))
        ignored = node.attributes.get("ignore_index")
        counted = np.ones(t.shape, bool) if ignored is None else t != ignored
        hit = np.where(counted, t, 0)[:, None]
        share = x.dtype.type(1 / counted.sum() if node.reduction == "mean" else 1)
        picked = np.take_along_axis(log, hit, 1)[:, 0]
        loss = -(picked * counted).sum() * share

        def backward(g: Any) -> Any:
            gx = np.exp(log)
            np.put_along_axis(gx, hit, np.take_along_axis(gx, hit, 1) - 1, 1)
            return gx * counted[:, None] * (g * share), None

        return np.asarray(loss, x.dtype), backward

    # ---- shapes ----

    def visit_Reshape(self, node: Any, x: Any, shape: Any) -> Any:
        wanted = [
            x.shape[i] if n == 0 and not node.allowzero else int(n) for i, n in enumerate(shape)
        ]
        return x.reshape(wanted), lambda g: (g.reshape(x.shape), None)

    def visit_Flatten(self, node: Any, x: Any) -> Any:
        axis = node.axis + x.ndim if node.axis < 0 else node.axis
        y = x.reshape(math.prod(x.shape[:axis]), -1)
        return y, lambda g: (g.reshape(x.shape),)

    def visit_Transpose(self, node: Any, x: Any) -> Any:
        order = node.perm or tuple(range(x.ndim))[::-1]
        return x.transpose(order), lambda g: (g.transpose(np.argsort(order)),)

    def visit_Squeeze(self, node: Node, x: Any, axes: Any = None) -> Any:
        y = np.squeeze(x) if axes is None else np.squeeze(x, tuple(int(a) for a in axes))
        return y, lambda g: (g.reshape(x.shape), None)

    def visit_Unsqueeze(self, node: Node, x: Any, axes: Any) -> Any:
        y = np.expand_dims(x, tuple(int(a) for a in axes))
        return y, lambda g: (g.reshape(x.shape), None)

    def visit_Concat(self, node: Any, *xs: Any) -> Any:
        ends = np.cumsum([x.shape[node.axis] for x in xs])[:-1]
        y = np.concatenate(xs, node.axis)
        return y, lambda g: tuple(np.split(g, ends, node.axis))

    def visit_Gather(self, node: Any, x: Any, index: Any) -> Any:
        def backward(g: Any) -> Any:
            gx = np.zeros(x.shape, g.dtype)
            where = (slice(None),) * (node.axis % x.ndim)
            np.add.at(gx, (*where, index), g)
            return gx, None

        return np.take(x, index, node.axis), backward

    def visit_Expand(self, node: Node, x: Any, shape: Any) -> Any:
        wanted = np.broadcast_shapes(x.shape, tuple(int(n) for n in shape))
        return np.broadcast_to(x, wanted), lambda g: (fit(g, x), None)

    def visit_Shape(self, node: Any, x: Any) -> Any:
        sizes = x.shape[node.attributes.get("start", 0) : node.attributes.get("end")]
        return np.array(sizes, np.int64), lambda g: (None,)

    def visit_Constant(self, node: Any) -> Any:
        value = next(iter(node.attributes.values()))
        kind = np.float32 if isinstance(value, float) else np.int64
        return (value if isinstance(value, np.ndarray) else np.array(value, kind)), lambda g: ()

    def visit_Cast(self, node: Any, x: Any) -> Any:
        return x.astype(dtype_of_code(node.to, "Cast")), lambda g: (g.astype(x.dtype),)

    # ---- reductions ----

    def visit_ReduceSum(self, node: Any, x: Any, axes: Any = None) -> Any:
        return self._reduced(node, x, axes, lambda n: 1)

    def visit_ReduceMean(self, node: Any, x: Any, axes: Any = None) -> Any:
        return self._reduced(node, x, axes, lambda n: 1 / n)

    def _reduced(self, node: Any, x: Any, axes: Any, share: Any) -> Any:
        given = node.attributes.get("axes") if axes is None else axes
        if (given is None or len(given) == 0) and node.attributes.get("noop_with_empty_axes", 0):
            return x, lambda g: (g, None)
        at = tuple(int(a) for a in given) if given is not None and len(given) else None
        whole = x.sum(at, keepdims=True)
        factor = x.dtype.type(share(x.size / whole.size))
        y = whole * factor
        out = y if node.keepdims else x.sum(at) * factor
        return np.asarray(out, x.dtype), lambda g: (
            np.broadcast_to(g.reshape(y.shape) * factor, x.shape),
            None,
        )


class ReferenceNetwork(Network):
    """A model in numpy. `visitor` may be any whose methods give (outputs, backward)."""

    backend, devices = "reference", ("cpu",)
    visitor: StrictVisitor = ReferenceVisitor()

    def missing(self) -> list[str]:
        has = self.visitor.method
        return listed(
            [n for n in self.graph.walk() if has(n) is None and not isinstance(n, Operation)]
        )

    def _build(self) -> None:
        self.grads: dict[str, Any] = {}

    def _forward(self, inputs: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
        values, tape = {**self.graph.initializers, **inputs}, []
        with np.errstate(all="ignore"):  # infinities are results
            for node in self.graph.nodes:
                given = [values[n] if n else None for n in node.inputs]
                if isinstance(node, Operation):
                    outs, backward = _own(node, given)
                else:
                    outs, backward = node.accept(self.visitor, *given)
                outs = outs if isinstance(outs, tuple) else (outs,)
                values.update(zip(node.outputs, outs, strict=False))
                tape.append((node, backward))
        return values, tape

    def _outputs(self, values: dict[str, Any]) -> dict[str, Any]:
        return {v.name: np.array(values[v.name]) for v in self.graph.outputs}

    def _infer(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return self._outputs(self._forward(inputs)[0])

    def _backprop(self, inputs: dict[str, Any]) -> dict[str, Any]:
        values, tape = self._forward(inputs)
        grads: dict[str, Any] = {self.loss: np.ones_like(values[self.loss])}
        with np.errstate(all="ignore"):
            for node, backward in reversed(tape):
                given = [grads.get(n) for n in node.outputs]
                if all(g is None for g in given):
                    continue  # the loss does not depend on it
                filled = [
                    np.zeros_like(values[n]) if g is None and n else g
                    for n, g in zip(node.outputs, given, strict=True)
                ]
                for name, g in zip(node.inputs, backward(*filled), strict=False):
                    if name and g is not None:
                        grads[name] = grads[name] + g if name in grads else g
        self.grads = grads
        return self._outputs(values)

    def _read(self, name: str) -> Any:
        own = name.removesuffix(GRADIENT)
        value = self.graph.initializers[own]
        if own == name:
            return value
        return np.asarray(self.grads.get(own, np.zeros_like(value)), value.dtype)


def _own(node: Operation, given: Sequence[Any]) -> tuple[tuple[Any, ...], Backward]:
    outs = node.computed(given)
    return tuple(outs), lambda *g: node.gradients(given, outs, g)
