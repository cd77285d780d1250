# SPDX-License-Identifier: Apache-2.0
"""Functions of tf that are more than one operation, or take their arguments in several forms."""

from __future__ import annotations

import numpy as np

import nnl.functions as F
import nnl.workspace as ws
from nnl.converters.onnx.values.values import dtype_of, is_var, scalar, tagged, var
from nnl.converters.tensorflow.messages import code_of_dtype
from nnl.dialects.tensorflow.operation import Call, as_dtype, convert, handled, made
from nnl.dialects.tensorflow.shapes import TensorShape, sizes_of
from nnl.dialects.tensorflow.table import N, cast, defined, named, pair, tensor, whole


def fixed(v):
    """A value that no gradient goes through."""
    if not is_var(v):
        return v
    v = tagged(F.identity(v), dtype_of(v))
    v.need_grad = False
    return v


def code(dtype):
    """TensorFlow's number of a type."""
    return code_of_dtype(as_dtype(dtype))


def typed_tensors(values):
    """Tensors of one type."""
    kind = next((v.dtype for v in values if isinstance(v, ws.Tensor)), None)
    return [tensor(v, kind) for v in values]


def tensordot(a, b, axes, name=None):
    """The sum of products over axes of each."""
    a, b = map(tensor, pair(a, b))
    if isinstance(axes, int):
        axes = list(range(a.ndim - axes, a.ndim)), list(range(axes))
    first, second = (np.reshape(n, -1).tolist() for n in axes)
    x = [chr(97 + i) for i in range(a.ndim)]
    y = [chr(65 + i) for i in range(b.ndim)]
    for i, j in zip(first, second, strict=True):
        y[j % b.ndim] = x[i % a.ndim]
    free = [c for c in x if c not in y] + [c for c in y if c not in x]
    return N.einsum(f"{''.join(x)},{''.join(y)}->{''.join(free)}", a, b, name=name)


def matmul(a, b, transpose_a=False, transpose_b=False, adjoint_a=False, adjoint_b=False,
           name=None, **_):  # fmt: skip
    """The product of matrices, of many where there are more axes."""
    a, b = map(tensor, pair(a, b))
    turn_a, turn_b = transpose_a or adjoint_a, transpose_b or adjoint_b
    if max(a.ndim or 2, b.ndim or 2) > 2:
        return handled("BatchMatMulV2", a, b, name=name or "MatMul", adj_x=turn_a, adj_y=turn_b)
    return handled("MatMul", a, b, name=name, transpose_a=turn_a, transpose_b=turn_b)


def _masked(type, mask, x, name):
    """Matrices of which a mask, made of their sizes, keeps a part."""

    def compute(v):
        kept = np.broadcast_to(mask(*np.indices(v.shape[-2:])), v.shape).astype(np.float32)
        return F.mul2(var(v), var(np.ascontiguousarray(kept)))

    return made(type, compute, tensor(x), name=name)


def _band(low, high):
    return lambda i, j: ((low < 0) | (i - j <= low)) & ((high < 0) | (j - i <= high))


def range_(start, limit=None, delta=1, dtype=None, name="range"):
    """start, start + delta, ... below limit."""
    start, limit = (0, start) if limit is None else (start, limit)
    values = [convert(v) for v in (start, limit, delta)]
    kind = as_dtype(dtype or np.result_type(*[v.dtype for v in values]))
    numbers = lambda *v: np.arange(*[scalar(n) for n in v], dtype=kind)  # noqa: E731
    return made("Range", numbers, *values, name=name, dtypes=[kind])


def _eye(num_rows, num_columns=None, batch_shape=None, dtype=np.float32, name=None):
    def compute(n, m):
        square = np.eye(int(scalar(n)), int(scalar(m)), dtype=dtype)
        return np.broadcast_to(square, (*(batch_shape or ()), *square.shape))

    columns = num_rows if num_columns is None else num_columns
    return made("eye", compute, convert(num_rows), convert(columns), name=name)


@named
def concat(values, axis, name="concat"):
    """Tensors behind each other along an axis."""
    if isinstance(values, (int, np.integer)):
        raise TypeError("concat: values is a number, wanted tensors, and then the axis")
    return handled("ConcatV2", *typed_tensors(values), convert(axis), name=name)


def unstack(value, num=None, axis=0, name="unstack"):
    """The parts along an axis, which goes."""
    x = tensor(value)
    num = num if num is not None else None if x.sizes is None else x.sizes[axis]
    if num is None:
        raise ValueError(f"Cannot infer argument `num` from shape {x.shape}")
    return handled("Unpack", x, name=name, count=num, num=num, axis=axis)


def split(value, num_or_size_splits, axis=0, num=None, name="split"):
    """A tensor cut along an axis into equal parts, or parts of given sizes."""
    x, at = tensor(value), np.int32(axis)
    if isinstance(num_or_size_splits, (int, np.integer)):
        n, total = int(num_or_size_splits), None if x.sizes is None else x.sizes[axis]
        if total is not None and total % n:
            raise ValueError(
                f"Dimension size must be evenly divisible by {n} but is {total} for '{name}' "
                f"(op: 'Split') with input shapes: [], {x.shape}."
            )
        return handled("Split", at, x, name=name, count=n, num_split=n, T=code(x.dtype))
    sizes = whole(num_or_size_splits)
    count = num or (sizes.sizes[0] if isinstance(sizes, ws.Tensor) else len(sizes))
    return handled("SplitV", x, sizes, at, name=name, count=count)


def strided_slice(input_, begin, end, strides=None, name=None, **masks):
    """A region as brackets say it, in masks."""
    begin = whole(begin)
    steps = np.ones(len(begin), np.int32) if strides is None else whole(strides)
    return handled("StridedSlice", tensor(input_), begin, whole(end), steps, name=name, **masks)


def part(self, key):
    """What brackets mean."""
    limits = []
    masks = dict.fromkeys(("begin", "end", "ellipsis", "new_axis", "shrink_axis"), 0)
    for i, k in enumerate(key if isinstance(key, tuple) else (key,)):
        limit = (0, 0, 1)
        if k is Ellipsis or k is None:
            masks["ellipsis" if k is Ellipsis else "new_axis"] |= 1 << i
        elif isinstance(k, slice):
            limit = tuple([0 if v is None else v for v in (k.start, k.stop, k.step or 1)])
            masks["begin"] |= (k.start is None) << i
            masks["end"] |= (k.stop is None) << i
        elif isinstance(k, (int, np.integer, ws.Tensor)):
            limit = (k, k + 1, 1)
            masks["shrink_axis"] |= 1 << i
        else:
            raise TypeError(
                "Only integers, slices (`:`), ellipsis (`...`), tf.newaxis (`None`) and scalar "
                f"tf.int32/tf.int64 tensors are valid indices, got {k!r}"
            )
        limits.append(limit)
    begin, end, step = (list(v) for v in zip(*limits, strict=True))
    return strided_slice(self, begin, end, step, **{f"{k}_mask": v for k, v in masks.items()})


def one_hot(indices, depth, on_value=None, off_value=None, axis=None, dtype=None, name=None):
    """1 at the index along a new axis, 0 elsewhere."""
    kind = as_dtype(dtype or np.float32)
    on, off = (np.asarray(d if v is None else v, kind) for v, d in ((on_value, 1), (off_value, 0)))
    options = {"axis": -1 if axis is None else axis, "T": code(kind)}
    return handled("OneHot", tensor(indices), convert(depth), on, off, name=name, **options)


def pad(tensor, paddings, mode="CONSTANT", name=None, constant_values=0):
    """With more elements at the ends: of one value, or mirrored."""
    x, widths = convert(tensor), convert(paddings)
    if mode.upper() == "CONSTANT":
        return handled("PadV2", x, widths, np.asarray(constant_values, x.dtype), name=name or "Pad")
    return handled("MirrorPad", x, widths, name=name, mode=mode.upper())


def fill(dims, value, name=None):
    """A shape full of one value."""
    value = convert(value)
    return handled("Fill", whole(dims), value, name=name, T=code(value.dtype))


def where(condition, x=None, y=None, name=None):
    """x where the condition holds, y elsewhere; without both, positions where it holds."""
    condition = tensor(condition)
    if x is None and y is None:
        y = made("Where", Call("Where", {}), condition, name=name, dtypes=[np.int64])
        y.set_shape([None, condition.ndim])
        return y
    x, y = pair(x, y)
    return handled("Select", condition, x, tensor(y), name=name, T=code(x.dtype))


def boolean_mask(tensor, mask, name="boolean_mask", axis=None):
    """What a mask keeps: the mask must be fed, or known."""

    def compute(v, m):
        kept = np.asarray(ws.value_of(m, "the mask"), bool)
        flat = F.reshape(var(v), (-1, *v.shape[kept.ndim :]))
        y = F.gather(flat, var(np.flatnonzero(kept).astype(np.int32)), axis=0)
        return tagged(y, dtype_of(v))

    return made("boolean_mask", compute, convert(tensor), convert(mask), name=name)


def sequence_mask(lengths, maxlen=None, dtype=np.bool_, name=None):
    """Whether a step is before the end of each length."""
    lengths = tensor(lengths)
    most = N.reduce_max(lengths) if maxlen is None else maxlen
    return cast(cast(range_(most), lengths.dtype) < N.expand_dims(lengths, -1), dtype, name)


@named
def reverse_sequence(input, seq_lengths, seq_axis=0, batch_axis=0, name=None):
    """The first steps of every sample backwards, as many as its length."""
    x, n = tensor(input), cast(seq_lengths, np.int32)
    if {seq_axis, batch_axis} != {0, 1}:
        raise NotImplementedError(f"reverse_sequence: axes {seq_axis}, {batch_axis}, not 0 and 1")
    order = [1, 0, *range(2, x.ndim)]
    x = N.transpose(x, order) if seq_axis == 0 else x
    ends = N.expand_dims(n, 1)
    steps = range_(N.shape(x)[1]) + 0 * ends
    y = N.gather(x, where(steps < ends, ends - 1 - steps, steps), axis=1, batch_dims=1)
    y.set_shape(x.sizes)
    return N.transpose(y, order) if seq_axis == 0 else y


def meshgrid(*args, indexing="xy", name=None):
    """Coordinates of a grid."""
    axes = [tensor(a) for a in args]
    order = list(range(len(axes)))
    if indexing == "xy":
        order[:2] = order[:2][::-1]
    sizes = [N.size(axes[i]) for i in order]
    wide = [[-1 if j == i else 1 for j in order] for i in range(len(axes))]
    return [N.broadcast_to(N.reshape(a, w), sizes) for a, w in zip(axes, wide, strict=True)]


def _segments(x, at, n):
    rest = tuple(x.shape[len(at.shape) :])
    flat, rows = F.reshape(var(x), (-1, *rest)), F.reshape(var(at), (1, -1))
    return F.scatter_nd(flat, rows, shape=(int(scalar(n)), *rest), add=True)


def clip_by_global_norm(t_list, clip_norm, use_norm=None, name=None):
    """Tensors scaled down so that their norm together is at most a number, and that norm."""
    norm = N.global_norm(t_list) if use_norm is None else use_norm
    scale = clip_norm / N.maximum(norm, clip_norm)
    return [None if t is None else t * scale for t in t_list], norm


def reduce_logsumexp(input_tensor, axis=None, keepdims=False, name=None):
    """$\\log \\sum e^x$, which does not overflow."""
    x = tensor(input_tensor)
    most = N.stop_gradient(N.reduce_max(x, axis, True))
    total = N.reduce_sum(N.exp(x - most), axis, keepdims)
    most = most if keepdims else N.reduce_sum(most, axis)
    return N.add(N.log(total), most, name=name)


def norm(tensor, ord=2, axis=None, keepdims=False, name=None):
    """A norm of vectors along axes: 1, 2, "euclidean" or inf."""
    if ord in (1, np.inf):
        return (N.reduce_sum if ord == 1 else N.reduce_max)(N.abs(tensor), axis, keepdims, name)
    if ord not in ("euclidean", "fro", 2):
        raise ValueError(f"norm: ord is {ord!r}, wanted 1, 2, 'euclidean' or inf")
    return N.sqrt(N.reduce_sum(N.square(tensor), axis, keepdims), name=name or "norm")


def _arg(op):
    return lambda input, axis=None, name=None, output_type=np.int64: handled(
        op, tensor(input), np.int32(axis or 0), name=name, output_type=code(output_type)
    )


# fmt: off
N.update(defined({
    "identity": lambda input, name=None: made(
        "Identity", lambda v: F.identity(v) if is_var(v) else v, tensor(input), name=name),
    "stop_gradient": lambda input, name=None: made(
        "StopGradient", fixed, tensor(input), name=name),
    "sign": lambda x, name=None: made(
        "Sign", lambda v: fixed(Call("Sign", {})(v)), tensor(x), name=name),
    "zeros_like": lambda tensor, dtype=None, name=None, optimize=True: cast(
        handled("ZerosLike", x := _tensor(tensor), name=name), dtype or x.dtype),
    "ones_like": lambda tensor, dtype=None, name=None, optimize=True: cast(
        handled("OnesLike", x := _tensor(tensor), name=name), dtype or x.dtype),
    "add_n": lambda inputs, name=None: handled("AddN", *map(tensor, inputs), name=name),
    "log_sigmoid": lambda x, name=None: N.negative(N.softplus(-tensor(x)), name=name),
    "clip_by_value": lambda t, clip_value_min, clip_value_max, name=None: N.maximum(
        N.minimum(t, clip_value_max), clip_value_min, name=name),
    "clip_by_norm": lambda t, clip_norm, axes=None, name=None: N.multiply(
        t, clip_norm / N.maximum(N.sqrt(N.reduce_sum(t * t, axes, True)), clip_norm), name=name),
    "clip_by_global_norm": clip_by_global_norm,
    "global_norm": lambda t_list, name=None: N.sqrt(
        N.add_n([N.l2_loss(t) * 2.0 for t in t_list if t is not None]), name=name),
    "reduce_logsumexp": reduce_logsumexp,
    "argmax": _arg("ArgMax"),
    "argmin": _arg("ArgMin"),
    "norm": norm,
    "matmul": matmul,
    "einsum": lambda equation, *inputs, name=None: handled(
        "Einsum", *map(tensor, inputs), name=name, equation=equation),
    "tensordot": tensordot,
    "transpose": lambda a, perm=None, name="transpose", conjugate=False: handled(
        "Transpose", x := tensor(a), whole(range(x.ndim)[::-1] if perm is None else perm),
        name=name),
    "matrix_transpose": lambda a, name="matrix_transpose": N.transpose(
        a, [*range((n := tensor(a).ndim) - 2), n - 1, n - 2], name),
    "matrix_band_part": lambda input, num_lower, num_upper, name=None: _masked(
        "MatrixBandPart", _band(num_lower, num_upper), input, name),
    "diag_part": lambda input, name=None: N.reduce_sum(
        _masked("DiagPart", lambda i, j: i == j, input, name), -1),
    "diag": lambda diagonal, name=None: made(
        "Diag", lambda v: F.matrix_diag(var(v)), tensor(diagonal), name=name),
    "trace": lambda x, name=None: N.reduce_sum(N.diag_part(x), -1, name=name),
    "range": range_,
    "eye": _eye,
    "concat": concat,
    "stack": lambda values, axis=0, name="stack": handled(
        "Pack", *typed_tensors(values), name=name, axis=axis),
    "unstack": unstack,
    "split": split,
    "strided_slice": strided_slice,
    "_getitem": part,
    "one_hot": one_hot,
    "pad": pad,
    "fill": fill,
    "zeros": lambda shape, dtype=np.float32, name="zeros": fill(
        shape, np.zeros((), as_dtype(dtype)), name),
    "ones": lambda shape, dtype=np.float32, name="ones": fill(
        shape, np.ones((), as_dtype(dtype)), name),
    "where": where,
    "boolean_mask": boolean_mask,
    "sequence_mask": sequence_mask,
    "reverse_sequence": reverse_sequence,
    "meshgrid": meshgrid,
    "unique": lambda x, out_idx=np.int32, name=None: handled(
        "Unique", convert(x), name=name, count=2, out_idx=code(out_idx)),
    "unsorted_segment_sum": lambda data, segment_ids, num_segments, name=None: made(
        "UnsortedSegmentSum", _segments, tensor(data), convert(segment_ids),
        convert(num_segments), name=name),
    "segment_sum": lambda data, segment_ids, name=None: N.unsorted_segment_sum(
        data, segment_ids, N.reduce_max(segment_ids) + 1, name),
    "top_k": lambda input, k=1, sorted=True, name=None: tuple(
        handled("TopKV2", tensor(input), convert(k), name=name, count=2)),
    "in_top_k": lambda predictions, targets, k, name=None: N.less(N.reduce_sum(cast(N.greater(
        predictions, N.gather(predictions, N.expand_dims(targets, 1), axis=1, batch_dims=1)),
        np.int32), 1), k, name=name),
    "broadcast_static_shape": lambda shape_x, shape_y: TensorShape(
        np.broadcast_shapes(sizes_of(shape_x), sizes_of(shape_y))),
    "cast": cast,
    "segment_mean": lambda data, segment_ids, name=None: N.div_no_nan(
        N.segment_sum(data, segment_ids), N.segment_sum(N.ones_like(data), segment_ids), name=name),
    "logical_xor": lambda x, y, name="LogicalXor": N.not_equal(*map(tensor, (x, y)), name=name),
    "count_nonzero": lambda input_tensor, axis=None, keepdims=False, dtype=np.int64,
        name=None: cast(N.reduce_sum(
            cast(N.not_equal(input_tensor, 0), np.int32), axis, keepdims), dtype, name),
    "confusion_matrix": lambda labels, predictions, num_classes, dtype=np.int32, name=None,
        weights=None: N.scatter_nd(
            N.stack([cast(labels, np.int32), cast(predictions, np.int32)], 1),
            N.ones_like(cast(labels, dtype)) if weights is None else cast(weights, dtype),
            [num_classes, num_classes], name=name),
    "cross": lambda a, b, name=None: N.subtract(
        N.gather(a, [1, 2, 0], axis=-1) * N.gather(b, [2, 0, 1], axis=-1),
        N.gather(a, [2, 0, 1], axis=-1) * N.gather(b, [1, 2, 0], axis=-1), name=name),
    "matrix_diag": lambda diagonal, name=None: N.multiply(
        N.expand_dims(x := tensor(diagonal), -1), N.eye(N.shape(x)[-1], dtype=x.dtype), name=name),
    "matrix_diag_part": lambda input, name=None: N.reduce_sum(
        (x := tensor(input)) * N.eye(x.sizes[-1], dtype=x.dtype), -1, name=name),
    "to_float": lambda x, name=None: cast(x, np.float32, name),
    "to_double": lambda x, name=None: cast(x, np.float64, name),
    "to_int32": lambda x, name=None: cast(x, np.int32, name),
    "to_int64": lambda x, name=None: cast(x, np.int64, name),
}))
# fmt: on
N["accumulate_n"] = N.add_n
N.update(lin_space=N.linspace, reverse_v2=N.reverse, arg_max=N.argmax, arg_min=N.argmin)
_tensor = tensor
