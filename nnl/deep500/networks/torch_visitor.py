# SPDX-License-Identifier: Apache-2.0
"""ONNX's operators as calls of PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as TF

from nnl.converters.onnx.file.tensors import dtype_of_code
from nnl.deep500.arrays import ArrayVisitor
from nnl.deep500.operation import Operation

DTYPES = {
    np.dtype(n): getattr(torch, n)
    for n in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
# types that numpy does not know: as bits of this type they go from one to the other
_BITS = {
    np.dtype(getattr(ml_dtypes, n)): (np.dtype(bits), getattr(torch, bits))
    for n, bits in (
        *(("bfloat16", "int16"), ("float8_e4m3fn", "uint8"), ("float8_e5m2", "uint8")),
        *(("float8_e4m3fnuz", "uint8"), ("float8_e5m2fnuz", "uint8")),
    )
}
DTYPES |= {dtype: getattr(torch, dtype.name) for dtype in _BITS}
_BACK = {v: k for k, v in DTYPES.items()}
_KNOWN = {v for k, v in DTYPES.items() if k not in _BITS}
_SCATTER = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


class _Own(torch.autograd.Function):
    """An operator whose body the user wrote for numpy."""

    @staticmethod
    def forward(ctx: Any, op: Operation, *inputs: Any) -> Any:
        arrays = [x.detach().cpu().numpy() for x in inputs]
        outs = op.computed(arrays)
        ctx.op, ctx.arrays, ctx.outs, ctx.device = op, arrays, outs, inputs[0].device
        tensors = tuple([torch.from_numpy(np.array(y)).to(ctx.device) for y in outs])
        return tensors if len(tensors) > 1 else tensors[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        given = [
            np.zeros_like(y) if g is None else g.detach().cpu().numpy()
            for g, y in zip(grads, ctx.outs, strict=True)
        ]
        found = ctx.op.gradients(ctx.arrays, ctx.outs, given)
        return None, *[
            torch.from_numpy(np.array(g)).to(ctx.device) if x.dtype.kind == "f" else None
            for g, x in zip(found, ctx.arrays, strict=True)
        ]


def _mod(node: Any, x: Any, y: Any) -> Any:
    return torch.fmod(x, y) if node.fmod else torch.remainder(x, y)


def _divide(x: Any, y: Any) -> Any:
    return x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


def _short(sizes: Sequence[int]) -> Any:
    """One number where it holds for every axis, which torch reads faster than a tuple."""
    return sizes[0] if len(set(sizes)) == 1 else tuple(sizes)


class TorchVisitor(ArrayVisitor):
    """ONNX's operators as calls of torch."""

    simple: dict[str, Callable[..., Any]] = {
        **{
            name: getattr(torch, name.lower())
            for name in (
                *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh"),
                *("Erf", "Exp", "Floor", "IsNaN", "Log", "MatMul", "Reciprocal", "Round"),
                *("Sigmoid", "Sign", "Sin", "Sinh", "Sqrt", "Tan", "Tanh", "Det", "Relu"),
            )
        },
        **{"Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": _divide, "Neg": torch.neg},
        **{"And": torch.logical_and, "Or": torch.logical_or, "Xor": torch.logical_xor},
        **{"Not": torch.logical_not, "BitwiseAnd": torch.bitwise_and, "Where": torch.where},
        **{"BitwiseOr": torch.bitwise_or, "BitwiseXor": torch.bitwise_xor},
        **{"BitwiseNot": torch.bitwise_not, "Equal": torch.eq, "Less": torch.lt},
        **{"Greater": torch.gt, "LessOrEqual": torch.le, "GreaterOrEqual": torch.ge},
        "Pow": lambda x, y: torch.pow(x, y).to(x.dtype),
        "Max": lambda *xs: reduce(torch.maximum, xs),
        "Min": lambda *xs: reduce(torch.minimum, xs),
    }

    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    def constant(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.constant(v) for v in value]
        if value is None or isinstance(value, torch.Tensor):
            return value
        value = np.asarray(value)
        if value.dtype not in DTYPES:
            raise TypeError(f"the torch back end has no dtype {value.dtype}")
        if value.dtype in _BITS:
            bits = torch.from_numpy(value.view(_BITS[value.dtype][0]).copy())
            return bits.view(DTYPES[value.dtype]).to(self.device)
        return torch.from_numpy(np.array(value)).to(self.device)

    def host(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.host(v) for v in value]
        if not isinstance(value, torch.Tensor):
            return value
        if value.dtype in _KNOWN:
            return value.numpy(force=True)
        value = value.detach().cpu()
        dtype = _BACK[value.dtype]
        return value.contiguous().view(_BITS[dtype][1]).numpy().view(dtype)

    def own(self, node: Operation, *inputs: Any) -> Any:
        return _Own.apply(node, *inputs)

    # ---- primitives ----

    def dtype(self, x: Any) -> Any:
        return _BACK[x.dtype]

    def cast(self, x: Any, dtype: Any) -> Any:
        if np.dtype(dtype) not in DTYPES:
            raise TypeError(f"the torch back end has no dtype {np.dtype(dtype)}")
        return x.to(DTYPES[np.dtype(dtype)])

    def visit_Cast(self, node: Any, x: Any) -> Any:
        return self.saturated(node, x, dtype_of_code(node.to, "Cast"))

    def visit_CastLike(self, node: Any, x: Any, like: Any) -> Any:
        return self.saturated(node, x, self.dtype(like))

    def saturated(self, node: Any, x: Any, dtype: Any) -> Any:
        """A cast; numbers that a float8 does not have become its largest one."""
        wanted = DTYPES.get(np.dtype(dtype))
        if wanted is not None and wanted.itemsize == 1 and wanted.is_floating_point:
            if node.attributes.get("saturate", 1):
                most = torch.finfo(wanted).max
                x = x.float().clamp(-most, most)
        return self.cast(x, dtype)

    def shape(self, x: Any) -> tuple[int, ...]:
        return tuple(x.shape)

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        return x.reshape(tuple(shape))

    def transpose(self, x: Any, axes: Sequence[int]) -> Any:
        return x.permute(tuple(axes))

    def concatenate(self, xs: Sequence[Any], axis: int) -> Any:
        return torch.cat(list(xs), axis)

    def broadcast_to(self, x: Any, shape: Sequence[int]) -> Any:
        return x.broadcast_to(tuple(shape))

    def where(self, c: Any, x: Any, y: Any) -> Any:
        return torch.where(c, x, y)

    def take(self, x: Any, index: Any, axis: int) -> Any:
        shape = x.shape[:axis] + index.shape + x.shape[axis + 1 :]
        return x.index_select(axis, index.reshape(-1)).reshape(shape)

    def gather_nd(self, x: Any, index: Any) -> Any:
        return (
            x[tuple(index.unbind(-1))] if index.shape[-1] else x.expand(index.shape[:-1] + x.shape)
        )

    def scatter_nd(self, x: Any, index: Any, updates: Any, how: str) -> Any:
        depth = index.shape[-1]
        sizes = x.shape[:depth]
        strides = [math.prod(sizes[i + 1 :]) for i in range(depth)]
        flat = sum(index[..., i] * s for i, s in enumerate(strides)).reshape(-1)  # type: ignore[union-attr]
        rest = x.shape[depth:]
        rows = x.reshape(math.prod(sizes), -1)
        new = updates.reshape(flat.shape[0], -1)
        if how == "none":
            return rows.index_copy(0, flat, new).reshape(x.shape)
        full = flat[:, None].expand(new.shape)
        return rows.scatter_reduce(0, full, new, _SCATTER[how]).reshape(*sizes, *rest)

    def flip(self, x: Any, axes: Sequence[int]) -> Any:
        return torch.flip(x, tuple(axes))

    def pad(self, x: Any, pads: Sequence[tuple[int, int]], value: Any) -> Any:
        flat = [n for pair in reversed(pads) for n in pair]
        return TF.pad(x, flat, value=value) if any(flat) else x

    def reduce(self, how: str, x: Any, axes: Sequence[int], keep: bool) -> Any:
        axes = tuple(axes)
        if not axes:
            return x
        if how in ("sum", "mean"):
            if how == "mean" and not x.is_floating_point():
                return torch.mean(x.double(), axes, keep).to(x.dtype)
            return getattr(torch, how)(x, axes, keep, dtype=x.dtype)
        if how == "prod":
            for a in sorted(axes, reverse=True):
                x = torch.prod(x, a, keep, dtype=x.dtype)
            return x
        if 0 in [x.shape[a] for a in axes]:
            kind = x.dtype if x.dtype == torch.bool else None
            info = (
                None if kind else (torch.finfo if x.is_floating_point() else torch.iinfo)(x.dtype)
            )
            bound = math.inf if x.is_floating_point() else (1 if kind else info.max)
            low = -bound if x.is_floating_point() else (0 if kind else info.min)
            shape = [1 if i in axes else n for i, n in enumerate(x.shape) if keep or i not in axes]
            return torch.full(shape, low if how == "max" else bound, dtype=x.dtype)
        if x.dtype == torch.bool:
            return self.reduce(how, x.to(torch.uint8), axes, keep).bool()
        return (torch.amax if how == "max" else torch.amin)(x, axes, keep)

    def arg(self, how: str, x: Any, axis: int) -> Any:
        return (torch.argmax if how == "max" else torch.argmin)(x, axis)

    def cumulative(self, how: str, x: Any, axis: int) -> Any:
        return (torch.cumsum if how == "sum" else torch.cumprod)(x, axis, dtype=x.dtype)

    def top(self, x: Any, k: int, largest: bool) -> tuple[Any, Any]:
        values, index = torch.sort(x, dim=-1, descending=largest, stable=True)
        return values[..., :k], index[..., :k]

    def matmul(self, x: Any, y: Any) -> Any:
        return torch.matmul(x, y)

    def einsum(self, equation: str, *xs: Any) -> Any:
        return torch.einsum(equation, *xs)

    def sqrt(self, x: Any) -> Any:
        return torch.sqrt(x)

    def rounded(self, x: Any) -> Any:
        return torch.round(x)

    def softmax(self, x: Any, axis: int) -> Any:
        return torch.softmax(x, axis)

    def fourier(self, x: Any, n: int, axis: int, inverse: bool) -> Any:
        call = torch.fft.ifft if inverse else torch.fft.fft
        return torch.view_as_real(call(torch.view_as_complex(x.contiguous()), n, axis))

    def convolve(self, x: Any, w: Any, strides: Any, dilations: Any, group: int) -> Any:
        call = (TF.conv1d, TF.conv2d, TF.conv3d)[x.ndim - 3]
        return call(x, w, None, tuple(strides), 0, tuple(dilations), group)

    def largest(self, x: Any, kernel: Any, strides: Any, dilations: Any) -> tuple[Any, ...]:
        call = (TF.max_pool1d, TF.max_pool2d, TF.max_pool3d)[x.ndim - 3]
        kept = x.dtype
        wide = x if x.is_floating_point() else x.float()
        y, index = call(
            wide, tuple(kernel), tuple(strides), 0, tuple(dilations), return_indices=True
        )
        return y.to(kept), index

    # ---- what torch has whole ----

    def visit_Mod(self, node: Any, x: Any, y: Any) -> Any:
        return _mod(node, x, y)

    def visit_LogSoftmax(self, node: Any, x: Any) -> Any:
        if node.since < 13:
            return torch.log(self.visit_Softmax(node, x))
        return torch.log_softmax(x, node.axis)

    def prepare_SoftmaxCrossEntropyLoss(self, node: Any) -> Any:
        if "ignore_index" in node.attributes or node.reduction != "mean" or len(node.outputs) > 1:
            return None
        kinds = torch.int64, torch.uint8  # which torch takes as they are

        def loss(x: Any, t: Any, w: Any = None) -> Any:
            return TF.cross_entropy(x, t if t.dtype in kinds else t.long(), w)

        return loss

    def visit_SoftmaxCrossEntropyLoss(self, node: Any, x: Any, t: Any, w: Any = None) -> Any:
        ignored = node.attributes.get("ignore_index", -100)
        loss = TF.cross_entropy(x, t.long(), w, ignore_index=ignored, reduction=node.reduction)
        return (loss, TF.log_softmax(x, 1)) if len(node.outputs) > 1 else loss

    def visit_Gelu(self, node: Any, x: Any) -> Any:
        return TF.gelu(x, approximate=node.approximate)

    def visit_Conv(self, node: Any, x: Any, w: Any, b: Any = None) -> Any:
        found = self.convolution(node, x.ndim - 2)
        if found is None:
            return super().visit_Conv(node, x, w, b)
        call, *more = found
        return call(x, w, b, *more)

    def prepare_Conv(self, node: Any) -> Any:
        found = (
            None if node.kernel_shape is None else self.convolution(node, len(node.kernel_shape))
        )
        if found is None:
            return None
        call, *more = found
        return call, *[None] * (3 - len(node.inputs)), *more

    def convolution(self, node: Any, rank: int) -> Any:
        """The function of torch and what follows x, w and b; None where it has none that pads like
        this."""
        pads, ones = node.pads or (0,) * 2 * rank, (1,) * rank
        if node.auto_pad != "NOTSET" or pads[:rank] != pads[rank:] or rank > 3:
            return None
        call = (TF.conv1d, TF.conv2d, TF.conv3d)[rank - 1]
        sizes = node.strides or ones, pads[:rank], node.dilations or ones
        return call, *map(_short, sizes), node.group

    def prepare_MaxPool(self, node: Any) -> Any:
        kernel = node.kernel_shape
        rank, many = len(kernel), len(node.outputs) > 1
        pads, ones = node.pads or (0,) * 2 * rank, (1,) * rank
        if node.auto_pad != "NOTSET" or node.attributes.get("ceil_mode", 0) or rank > 3 or many:
            return None
        if any(2 * p > k for p, k in zip(pads, kernel, strict=False)) or pads[:rank] != pads[rank:]:
            return None  # torch wants them like this
        call = (torch.max_pool1d, torch.max_pool2d, torch.max_pool3d)[rank - 1]
        dilations = node.attributes.get("dilations") or ones
        more = [_short(kernel), _short(node.strides or ones), _short(pads[:rank])]
        more += [] if set(dilations) == {1} else [_short(dilations)]
        if rank > 1 and self.device == "cpu":  # elsewhere torch has no pools of whole numbers
            return call, *more
        return lambda x: call(x, *more) if x.is_floating_point() else self.visit_MaxPool(node, x)

    def prepare_Gemm(self, node: Any) -> Any:
        scales, turned_a, turned_b = (node.beta, node.alpha), node.transA, node.transB
        if scales == (1, 1) and turned_b and not turned_a:
            return (TF.linear,)

        def gemm(a: Any, b: Any, c: Any = None) -> Any:
            if c is None or not a.is_floating_point():
                return self.visit_Gemm(node, a, b, c)
            a, b = a.t() if turned_a else a, b.t() if turned_b else b
            return torch.addmm(c, a, b, beta=scales[0], alpha=scales[1])

        return gemm

    def prepare_Flatten(self, node: Any) -> Any:
        if node.axis != 1:
            return None
        return lambda x: x.flatten(1) if x.ndim > 1 else self.visit_Flatten(node, x)

    def prepare_BatchNormalization(self, node: Any) -> Any:
        eps = node.epsilon
        if not node.attributes.get("training_mode", 0):
            return lambda x, scale, bias, mean, var: TF.batch_norm(
                x, mean, var, scale, bias, False, 0.0, eps
            )
        if len(node.outputs) == 1:
            return lambda x, scale, bias, mean, var: TF.batch_norm(
                x, None, None, scale, bias, True, 0.0, eps
            )
        return None

    def visit_BatchNormalization(
        self, node: Any, x: Any, scale: Any, bias: Any, mean: Any, var: Any
    ) -> Any:
        y = TF.batch_norm(x, None, None, scale, bias, True, 0.0, node.epsilon)
        axes = [i for i in range(x.ndim) if i != 1]
        keep = node.momentum
        with torch.no_grad():
            v, m = torch.var_mean(x, axes, correction=0)
            outs = mean * keep + m * (1 - keep), var * keep + v * (1 - keep)
        return (y, *outs)[: len(node.outputs)]

    def visit_GridSample(self, node: Any, x: Any, grid: Any) -> Any:
        mode = {"linear": "bilinear", "cubic": "bicubic"}.get(node.mode, node.mode)
        return TF.grid_sample(
            x, grid, mode, node.padding_mode, align_corners=bool(node.align_corners)
        )

    def visit_BitCast(self, node: Any, x: Any) -> Any:
        return x.view(DTYPES[dtype_of_code(node.to, "BitCast")])

    def visit_BitShift(self, node: Any, x: Any, y: Any) -> Any:
        call = torch.bitwise_left_shift if node.direction == "LEFT" else torch.bitwise_right_shift
        if x.dtype in (torch.uint16, torch.uint32, torch.uint64):
            return call(x.long(), y.long()).to(x.dtype)
        return call(x, y)
