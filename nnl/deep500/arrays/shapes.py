# SPDX-License-Identifier: Apache-2.0
"""Shapes, parts, reductions and the arithmetic of arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl.converters.onnx.file.tensors import dtype_of_code
from nnl.deep500.arrays.primitives import Primitives


class ShapeOperators(Primitives):
    """Operators that move numbers, reduce them, or combine others."""

    # ---- constants and shapes ----

    def visit_Constant(self, node: Any) -> Any:
        name, value = next(iter(node.attributes.items()))
        if name in ("value", "sparse_value"):
            return self.constant(value)
        kind = {"f": np.float32, "i": np.int64, "s": object}[name[6]]
        return self.constant(np.array(value, kind))

    def visit_ConstantOfShape(self, node: Any, shape: Any) -> Any:
        value = node.value if node.value is not None else np.zeros(1, np.float32)
        return self.constant(np.broadcast_to(value.reshape(()), self.ints(shape)).copy())

    def visit_Shape(self, node: Any, x: Any) -> Any:
        sizes = self.shape(x)[node.attributes.get("start", 0) : node.attributes.get("end")]
        return self.constant(np.array(sizes, np.int64))

    def visit_Size(self, node: Any, x: Any) -> Any:
        return self.constant(np.array(math.prod(self.shape(x)), np.int64))

    def visit_Reshape(self, node: Any, x: Any, shape: Any = None) -> Any:
        wanted = self.ints(shape) if shape is not None else list(node.attributes["shape"])
        if not node.attributes.get("allowzero", 0):
            wanted = [self.shape(x)[i] if n == 0 else n for i, n in enumerate(wanted)]
        return self.reshape(x, wanted)

    def visit_Flatten(self, node: Any, x: Any) -> Any:
        shape, axis = self.shape(x), node.axis
        axis = axis + len(shape) if axis < 0 else axis
        return self.reshape(x, (math.prod(shape[:axis]), math.prod(shape[axis:])))

    def visit_Squeeze(self, node: Any, x: Any, axes: Any = None) -> Any:
        given = axes is not None or "axes" in node.attributes
        drop = set(self.axes(x, axes, node)) if given else None
        shape = self.shape(x)
        keep = [n for i, n in enumerate(shape) if (n != 1 if drop is None else i not in drop)]
        return self.reshape(x, keep)

    def visit_Unsqueeze(self, node: Any, x: Any, axes: Any = None) -> Any:
        at = self.ints(axes) if axes is not None else list(node.attributes["axes"])
        rank, sizes = self.rank(x) + len(at), list(self.shape(x))
        for a in sorted(a % rank for a in at):
            sizes.insert(a, 1)
        return self.reshape(x, sizes)

    def visit_Transpose(self, node: Any, x: Any) -> Any:
        return self.transpose(x, node.perm or range(self.rank(x))[::-1])

    def visit_Expand(self, node: Any, x: Any, shape: Any) -> Any:
        return self.broadcast_to(x, np.broadcast_shapes(self.shape(x), tuple(self.ints(shape))))

    def visit_Tile(self, node: Any, x: Any, repeats: Any) -> Any:
        for axis, n in enumerate(self.ints(repeats)):
            x = x if n == 1 else self.concatenate([x] * n, axis)
        return x

    def visit_Concat(self, node: Any, *xs: Any) -> Any:
        return self.concatenate(xs, self.axis(xs[0], node.axis))

    def visit_Cast(self, node: Any, x: Any) -> Any:
        return self.cast(x, dtype_of_code(node.to, "Cast"))

    def visit_CastLike(self, node: Any, x: Any, like: Any) -> Any:
        return self.cast(x, self.dtype(like))

    def visit_Identity(self, node: Any, x: Any) -> Any:
        return x

    def visit_Dropout(self, node: Any, x: Any, ratio: Any = None, training: Any = None) -> Any:
        rate = 0.5 if ratio is None else float(self.host(ratio))
        keep = np.ones(self.shape(x), bool)
        if training is not None and bool(self.host(training)) and rate:
            random = np.random.RandomState(node.attributes.get("seed"))  # as ONNX's tests draw
            keep = random.uniform(0, 1, self.shape(x)) >= rate
            x = x * self.constant(keep.astype(self.dtype(x))) / (1 - rate)
        return (x, self.constant(keep)) if len(node.outputs) > 1 else x

    # ---- parts ----

    def span(self, x: Any, axis: int, start: int, stop: int, step: int = 1) -> Any:
        """x[start:stop:step] along an axis, for a step above 0."""
        if (start, step) == (0, 1) and stop >= self.shape(x)[axis]:
            return x
        return x[(slice(None),) * axis + (slice(start, stop, step),)]

    def visit_Slice(self, node: Any, x: Any, *given: Any) -> Any:
        if given:
            parts = [None if g is None else self.ints(g) for g in given]
            starts, ends, axes, steps = (*parts, None, None)[:4]
        else:
            starts, ends, axes = node.starts, node.ends, node.axes
            steps = None
        for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
            axis = self.axis(x, axes[i] if axes else i)
            step = steps[i] if steps else 1
            begin, end, step = slice(start, end, step).indices(self.shape(x)[axis])
            if step < 0:
                n = self.shape(x)[axis]
                x, begin, end, step = self.flip(x, [axis]), n - 1 - begin, n - 1 - end, -step
            x = self.span(x, axis, begin, max(begin, end), step)
        return x

    def visit_Split(self, node: Any, x: Any, split: Any = None) -> Any:
        axis, parts = self.axis(x, node.axis), len(node.outputs)
        n = self.shape(x)[axis]
        sizes = self.ints(split) if split is not None else node.attributes.get("split")
        if sizes is None:
            size = -(-n // parts)
            sizes = [min(size, n - i * size) for i in range(parts)]
        ends = np.cumsum(sizes)
        return tuple(
            self.span(x, axis, int(e) - s, int(e)) for s, e in zip(sizes, ends, strict=True)
        )

    def visit_Gather(self, node: Any, x: Any, index: Any) -> Any:
        axis = self.axis(x, node.axis)
        return self.take(x, self.wrapped(index, self.shape(x)[axis]), axis)

    def wrapped(self, index: Any, n: int) -> Any:
        """Indices counted from the front."""
        index = self.cast(index, np.int64)
        return self.where(index < 0, index + n, index)

    def grid(self, shape: Sequence[int], axis: int, index: Any) -> Any:
        """Full indices (*shape, rank) whose entry of `axis` comes from an array of that shape."""
        parts = np.meshgrid(*[np.arange(n) for n in shape], indexing="ij")
        columns = [
            index if i == axis else self.constant(p.astype(np.int64)) for i, p in enumerate(parts)
        ]
        return self.concatenate([self.reshape(c, (*shape, 1)) for c in columns], len(shape))

    def visit_GatherElements(self, node: Any, x: Any, index: Any) -> Any:
        axis = self.axis(x, node.axis)
        index = self.wrapped(index, self.shape(x)[axis])
        return self.gather_nd(x, self.grid(self.shape(index), axis, index))

    def visit_GatherND(self, node: Any, x: Any, index: Any) -> Any:
        return self.gather_nd(x, self.batched(x, index, node.batch_dims))

    def batched(self, x: Any, index: Any, batch: int = 0) -> Any:
        """Indices of the last axes with those of the batch axes in front, all from the front."""
        sizes = np.array(self.shape(x)[batch : batch + self.shape(index)[-1]], np.int64)
        index = self.cast(index, np.int64)
        index = self.where(index < 0, index + self.constant(sizes), index)
        if batch:
            outer = self.shape(index)[:-1]
            places = np.indices(outer)[:batch]
            front = np.moveaxis(places, 0, -1).astype(np.int64)
            index = self.concatenate([self.constant(front), index], len(outer))
        return index

    def visit_ScatterElements(self, node: Any, x: Any, index: Any, updates: Any) -> Any:
        axis = self.axis(x, node.axis)
        index = self.wrapped(index, self.shape(x)[axis])
        how = node.attributes.get("reduction", "none")
        return self.scatter_nd(x, self.grid(self.shape(index), axis, index), updates, how)

    visit_Scatter = visit_ScatterElements

    def visit_ScatterND(self, node: Any, x: Any, index: Any, updates: Any) -> Any:
        how = node.attributes.get("reduction", "none")
        return self.scatter_nd(x, self.batched(x, index), updates, how)

    def visit_Compress(self, node: Any, x: Any, condition: Any) -> Any:
        at = np.flatnonzero(self.host(condition)).astype(np.int64)
        if "axis" not in node.attributes:
            return self.take(self.reshape(x, (-1,)), self.constant(at), 0)
        return self.take(x, self.constant(at), self.axis(x, node.axis))

    def visit_NonZero(self, node: Any, x: Any) -> Any:
        return self.constant(np.stack(np.nonzero(self.host(x))).astype(np.int64))

    def visit_ReverseSequence(self, node: Any, x: Any, lengths: Any) -> Any:
        time, batch = node.time_axis, node.batch_axis
        shape = self.shape(x)
        places = np.indices(shape)
        wanted = np.asarray(self.ints(lengths))[places[batch]]
        places[time] = np.where(places[time] < wanted, wanted - 1 - places[time], places[time])
        return self.gather_nd(x, self.constant(np.moveaxis(places, 0, -1).astype(np.int64)))

    def visit_OneHot(self, node: Any, index: Any, depth: Any, values: Any) -> Any:
        n = self.ints(depth)[0]
        rank = self.rank(index) + 1
        axis = node.axis % rank
        index = self.wrapped(index, n)
        shape = [*self.shape(index)]
        shape.insert(axis, 1)
        line = np.arange(n, dtype=np.int64).reshape([n if i == axis else 1 for i in range(rank)])
        hit = self.reshape(index, shape) == self.constant(line)
        return self.where(hit, values[1], values[0])

    def visit_Trilu(self, node: Any, x: Any, k: Any = None) -> Any:
        k = 0 if k is None else self.ints(k)[0]
        m, n = self.shape(x)[-2:]
        side = np.triu if node.upper else np.tril
        keep = side(np.ones((m, n), bool), k)
        return self.where(self.constant(keep), x, self.like(x, 0))

    def visit_EyeLike(self, node: Any, x: Any) -> Any:
        given = "dtype" in node.attributes
        dtype = dtype_of_code(node.dtype, "EyeLike") if given else self.dtype(x)
        return self.constant(np.eye(*self.shape(x), k=node.k, dtype=dtype))

    def visit_Range(self, node: Any, start: Any, limit: Any, delta: Any) -> Any:
        values = [np.asarray(self.host(v)).reshape(()) for v in (start, limit, delta)]
        return self.constant(np.arange(*values, dtype=values[0].dtype))

    def visit_Pad(
        self, node: Any, x: Any, pads: Any = None, value: Any = None, axes: Any = None
    ) -> Any:
        given = self.ints(pads) if pads is not None else list(node.attributes["pads"])
        at = self.axes(x, axes)
        both = [(0, 0)] * self.rank(x)
        for i, axis in enumerate(at):
            both[axis] = given[i], given[i + len(at)]
        for axis, (low, high) in enumerate(both):
            if low < 0 or high < 0:  # cut first
                n = self.shape(x)[axis]
                x = self.span(x, axis, max(0, -low), n - max(0, -high))
                both[axis] = max(0, low), max(0, high)
        mode = node.mode
        if mode == "constant":
            fill = node.attributes.get("value", 0) if value is None else self.host(value)
            return self.pad(x, both, np.asarray(fill).reshape(()).item())
        for axis, pair in enumerate(both):
            if any(pair):
                index = np.pad(np.arange(self.shape(x)[axis]), pair, mode)  # type: ignore[call-overload]
                x = self.take(x, self.constant(index.astype(np.int64)), axis)
        return x

    def visit_Unique(self, node: Any, x: Any) -> Any:
        given = node.attributes.get("axis")
        y, first, inverse, count = np.unique(
            self.host(x), return_index=True, return_inverse=True, return_counts=True, axis=given
        )
        if not node.sorted:
            order = np.argsort(first)
            y = np.take(y, order, 0 if given is None else given)
            inverse = np.argsort(order)[inverse]
            first, count = first[order], count[order]
        outs = y, first, inverse.reshape(-1), count
        return tuple([self.constant(v) for v in outs])[: len(node.outputs)]

    # ---- reductions ----

    def reduced(self, how: str, node: Any, x: Any, axes: Any) -> Any:
        given = axes is not None and self.shape(axes) != (0,) or "axes" in node.attributes
        if not given and node.attributes.get("noop_with_empty_axes", 0):
            return x
        at = self.axes(x, axes if given and axes is not None else None, node)
        return self.reduce(how, x, at, bool(node.keepdims))

    def visit_ReduceSum(self, node: Any, x: Any, axes: Any = None) -> Any:
        return self.reduced("sum", node, x, axes)

    def visit_ReduceMean(self, node: Any, x: Any, axes: Any = None) -> Any:
        return self.reduced("mean", node, x, axes)

    def visit_ReduceProd(self, node: Any, x: Any, axes: Any = None) -> Any:
        return self.reduced("prod", node, x, axes)

    def visit_ReduceMax(self, node: Any, x: Any, axes: Any = None) -> Any:
        return self.reduced("max", node, x, axes)

    def visit_ReduceMin(self, node: Any, x: Any, axes: Any = None) -> Any:
        return self.reduced("min", node, x, axes)

    def visit_ArgMax(self, node: Any, x: Any) -> Any:
        return self.best("max", node, x)

    def visit_ArgMin(self, node: Any, x: Any) -> Any:
        return self.best("min", node, x)

    def best(self, how: str, node: Any, x: Any) -> Any:
        axis = self.axis(x, node.axis)
        if node.attributes.get("select_last_index", 0):
            y = self.shape(x)[axis] - 1 - self.arg(how, self.flip(x, [axis]), axis)
        else:
            y = self.arg(how, x, axis)
        shape = list(self.shape(x))
        shape[axis : axis + 1] = [1] if node.keepdims else []
        return self.reshape(self.cast(y, np.int64), shape)

    def running(self, how: str, node: Any, x: Any, axis: Any) -> Any:
        at = self.axis(x, self.ints(axis)[0])
        if node.reverse:
            x = self.flip(x, [at])
        y = self.cumulative(how, x, at)
        if node.exclusive:
            pads = [(1, 0) if i == at else (0, 0) for i in range(self.rank(x))]
            y = self.span(self.pad(y, pads, int(how == "prod")), at, 0, self.shape(x)[at])
        return self.flip(y, [at]) if node.reverse else y

    def visit_CumSum(self, node: Any, x: Any, axis: Any) -> Any:
        return self.running("sum", node, x, axis)

    def visit_CumProd(self, node: Any, x: Any, axis: Any) -> Any:
        return self.running("prod", node, x, axis)

    def visit_TopK(self, node: Any, x: Any, k: Any = None) -> Any:
        count = self.ints(k)[0] if k is not None else node.attributes["k"]
        moved, back = self.last(x, node.axis)
        values, index = self.top(moved, count, bool(node.attributes.get("largest", 1)))
        return self.transpose(values, back), self.transpose(self.cast(index, np.int64), back)

    def visit_Hardmax(self, node: Any, x: Any) -> Any:
        axis, shape = self.axis(x, node.axis), list(self.shape(x))
        best = self.cast(self.arg("max", x, axis), np.int64)
        line = np.arange(shape[axis], dtype=np.int64)
        line = line.reshape([-1 if i == axis else 1 for i in range(len(shape))])
        kept = [1 if i == axis else n for i, n in enumerate(shape)]
        return self.cast(self.reshape(best, kept) == self.constant(line), self.dtype(x))

    def visit_Softmax(self, node: Any, x: Any) -> Any:
        if node.since < 13:  # over all axes from this one on
            axis, shape = node.axis % self.rank(x), self.shape(x)
            flat = self.reshape(x, (math.prod(shape[:axis]), math.prod(shape[axis:])))
            return self.reshape(self.softmax(flat, 1), shape)
        return self.softmax(x, self.axis(x, node.axis))

    # ---- arithmetic ----

    def visit_Sum(self, node: Any, *xs: Any) -> Any:
        return sum(xs[1:], xs[0])

    def visit_Mean(self, node: Any, *xs: Any) -> Any:
        return sum(xs[1:], xs[0]) / len(xs)

    def visit_Clip(self, node: Any, x: Any, low: Any = None, high: Any = None) -> Any:
        low = node.attributes.get("min") if low is None else low
        high = node.attributes.get("max") if high is None else high
        x = x if low is None else self.where(x < low, self.filled(x, low), x)
        return x if high is None else self.where(x > high, self.filled(x, high), x)

    def filled(self, x: Any, value: Any) -> Any:
        """A number, or a value of one, as an array of the dtype of x."""
        return self.like(x, value) if isinstance(value, (int, float)) else value

    def visit_LeakyRelu(self, node: Any, x: Any) -> Any:
        return self.where(x < 0, x * node.alpha, x)

    def visit_Shrink(self, node: Any, x: Any) -> Any:
        near = self.where(x > node.lambd, x - node.bias, self.like(x, 0))
        return self.where(x < -node.lambd, x + node.bias, near)

    def visit_PRelu(self, node: Any, x: Any, slope: Any) -> Any:
        return self.where(x < 0, x * slope, x)

    def visit_IsInf(self, node: Any, x: Any) -> Any:
        hit = self.constant(np.zeros(self.shape(x), bool))
        hit = hit | (x == math.inf) if node.detect_positive else hit
        return hit | (x == -math.inf) if node.detect_negative else hit

    def visit_Gemm(self, node: Any, a: Any, b: Any, c: Any = None) -> Any:
        a = self.transpose(a, (1, 0)) if node.transA else a
        b = self.transpose(b, (1, 0)) if node.transB else b
        y = self.matmul(a, b)
        y = y if node.alpha == 1 else y * self.like(y, node.alpha)
        if c is None:
            return y
        return y + (c if node.beta == 1 else c * self.like(c, node.beta))

    def visit_Einsum(self, node: Any, *xs: Any) -> Any:
        return self.einsum(node.equation.replace(" ", ""), *xs)
