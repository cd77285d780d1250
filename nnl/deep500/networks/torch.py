# SPDX-License-Identifier: Apache-2.0
"""PyTorch: eager, or the traced graph through torch.compile."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
import torch
import torch.nn.functional as TF

from nnl.deep500.arrays import ArrayVisitor
from nnl.deep500.contract import GRADIENT, NativeTraining, listed
from nnl.deep500.execution import Values, VisitorNetwork
from nnl.deep500.operation import Operation

_DTYPES = {
    np.dtype(n): getattr(torch, n)
    for n in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
_BACK = {v: k for k, v in _DTYPES.items()}
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
        if value.dtype.name == "bfloat16":
            return torch.from_numpy(value.view(np.int16).copy()).view(torch.bfloat16)
        if value.dtype not in _DTYPES:
            raise TypeError(f"torch has no dtype {value.dtype}")
        return torch.from_numpy(np.array(value)).to(self.device)

    def host(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.host(v) for v in value]
        if not isinstance(value, torch.Tensor):
            return value
        value = value.detach().cpu()
        if value.dtype == torch.bfloat16:
            import ml_dtypes

            return value.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return value.numpy()

    def own(self, node: Operation, *inputs: Any) -> Any:
        return _Own.apply(node, *inputs)

    # ---- primitives ----

    def dtype(self, x: Any) -> Any:
        if x.dtype == torch.bfloat16:
            import ml_dtypes

            return np.dtype(ml_dtypes.bfloat16)
        return _BACK[x.dtype]

    def cast(self, x: Any, dtype: Any) -> Any:
        if np.dtype(dtype).name == "bfloat16":
            return x.to(torch.bfloat16)
        return x.to(_DTYPES[np.dtype(dtype)])

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

    def visit_Relu(self, node: Any, x: Any) -> Any:
        return torch.relu(x)

    def visit_LogSoftmax(self, node: Any, x: Any) -> Any:
        if node.since < 13:
            return torch.log(self.visit_Softmax(node, x))
        return torch.log_softmax(x, node.axis)

    def visit_SoftmaxCrossEntropyLoss(self, node: Any, x: Any, t: Any, w: Any = None) -> Any:
        ignored = node.attributes.get("ignore_index", -100)
        loss = TF.cross_entropy(x, t.long(), w, ignore_index=ignored, reduction=node.reduction)
        return (loss, TF.log_softmax(x, 1)) if len(node.outputs) > 1 else loss

    def visit_Gelu(self, node: Any, x: Any) -> Any:
        return TF.gelu(x, approximate=node.approximate)

    def visit_Conv(self, node: Any, x: Any, w: Any, b: Any = None) -> Any:
        rank = x.ndim - 2
        pads = node.pads or (0,) * 2 * rank
        if node.auto_pad != "NOTSET" or pads[:rank] != pads[rank:] or rank > 3:
            return super().visit_Conv(node, x, w, b)
        call = (TF.conv1d, TF.conv2d, TF.conv3d)[rank - 1]
        ones = (1,) * rank
        return call(x, w, b, node.strides or ones, pads[:rank], node.dilations or ones, node.group)

    def visit_BatchNormalization(
        self, node: Any, x: Any, scale: Any, bias: Any, mean: Any, var: Any
    ) -> Any:
        training = bool(node.attributes.get("training_mode", 0))
        if not training:
            return TF.batch_norm(x, mean, var, scale, bias, False, 0.0, node.epsilon)
        if len(node.outputs) == 1:
            return TF.batch_norm(x, None, None, scale, bias, True, 0.0, node.epsilon)
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

    def visit_BitShift(self, node: Any, x: Any, y: Any) -> Any:
        call = torch.bitwise_left_shift if node.direction == "LEFT" else torch.bitwise_right_shift
        if x.dtype in (torch.uint16, torch.uint32, torch.uint64):
            return call(x.long(), y.long()).to(x.dtype)
        return call(x, y)

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


class TorchNetwork(VisitorNetwork):
    """A model on PyTorch.

    Args:
        device: "cpu", "cuda", or either with ":compiled" for torch.compile.
    """

    backend, package = "torch", "torch"

    def __init__(self, model: Any, device: str = "", trainable: Any = None) -> None:
        place, _, how = (device or "cpu").partition(":")
        if place == "compiled":
            place, how = "cpu", place
        self.place, self.compiled = place, how == "compiled"
        self.visitor = TorchVisitor(place)
        self._graphs: dict[Any, Any] = {}
        super().__init__(model, device, trainable)

    def missing(self) -> list[str]:
        # tracing would take what a body in numpy gives for a constant
        own = [n for n in self.graph.walk() if self.compiled and isinstance(n, Operation)]
        return listed(own) or super().missing()

    def constant(self, value: Any) -> Any:
        return self.visitor.constant(value)

    def variable(self, value: Any) -> Any:
        return torch.tensor(np.array(value), device=self.place, requires_grad=True)

    def array(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.array(v) for v in value]
        return None if value is None else np.array(self.visitor.host(value))

    def _release(self) -> None:
        super()._release()
        self._graphs = {}

    def _run(self, inputs: Values) -> list[Any]:
        if not self.compiled:
            return super()._run(inputs)
        key = tuple((n, tuple(v.shape), v.dtype) for n, v in inputs.items())
        names = [*self.values, *inputs]
        given = [*self.values.values(), *inputs.values()]
        call = self._graphs.get((key, torch.is_grad_enabled()))
        if call is None:
            call = self._compile(names, given)
            self._graphs[key, torch.is_grad_enabled()] = call
        return list(call(*given))

    def _compile(self, names: list[str], given: list[Any]) -> Any:
        """The graph as torch's own operators, traced once, then compiled."""
        from torch.fx.experimental.proxy_tensor import make_fx

        def whole(*values: Any) -> Any:
            named = {**self.constants, **dict(zip(names, values, strict=True))}
            return self.machine.run(self.graph, named)

        return torch.compile(make_fx(whole)(*given))

    def _infer(self, inputs: Values) -> dict[str, Any]:
        with torch.no_grad():
            return super()._infer(inputs)

    def step(self, inputs: Values) -> list[Any]:
        """Outputs as tensors, with the gradients of the loss in the parameters."""
        outs = self._run(self._given(inputs))
        loss = outs[[v.name for v in self.graph.outputs].index(self.loss)]
        for v in self.values.values():
            v.grad = None
        (loss if loss.ndim == 0 else loss.sum()).backward()
        return outs

    def _backprop(self, inputs: Values) -> dict[str, Any]:
        return self._results(self.step(inputs))

    def _read(self, name: str) -> Any:
        own = name.removesuffix(GRADIENT)
        v = self.values[own]
        if own == name:
            return self.visitor.host(v)
        return (
            np.zeros(v.shape, self.visitor.dtype(v))
            if v.grad is None
            else self.visitor.host(v.grad)
        )

    def _write(self, name: str, value: Any) -> None:
        if name not in self.values:
            self.constants[name] = self.constant(value)
            return
        with torch.no_grad():
            self.values[name].copy_(torch.from_numpy(np.array(value)))

    def plain_training(self, rule: str, **settings: float) -> Any:
        """The graph exported to torch.fx, with torch's optimizer, as code of its own."""
        from torch.fx.experimental.proxy_tensor import make_fx

        optimizer = self._optimizer(rule, settings)
        weights = list(self.values.values())
        exported: list[Any] = []
        at = [v.name for v in self.graph.outputs].index(self.loss)

        def whole(*values: Any) -> Any:
            names = [*self.values, *[v.name for v in self.graph.inputs]]
            named = {**self.constants, **dict(zip(names, values, strict=True))}
            return self.machine.run(self.graph, named)

        def train(inputs: Any) -> float:
            given = [torch.from_numpy(inputs[v.name]) for v in self.graph.inputs]
            if not exported:
                exported.append(make_fx(whole)(*weights, *given))
            optimizer.zero_grad()
            outs = exported[0](*weights, *given)
            outs[at].backward()
            optimizer.step()
            return float([np.array(y.detach().numpy()) for y in outs][at])

        return train

    def native_optimizer(self, rule: str, **settings: float) -> NativeTraining:
        optimizer = self._optimizer(rule, settings)
        weights = list(self.values.values())
        on_host = self.place == "cpu"  # then numpy arrays share the memory of tensors
        return NativeTraining(
            lambda inputs: self._results(self.step(self._bound(inputs))),
            optimizer.step,
            (lambda: [v.grad.numpy() for v in weights]) if on_host else None,
            (lambda: [v.detach().numpy() for v in weights]) if on_host else None,
        )

    def _optimizer(self, rule: str, s: dict[str, float]) -> Any:
        self.setup()
        makers: dict[str, Any] = {
            "sgd": torch.optim.SGD,
            "momentum": torch.optim.SGD,
            "nesterov": partial(torch.optim.SGD, nesterov=True),
            "adagrad": torch.optim.Adagrad,
            "adam": torch.optim.Adam,
        }
        if rule not in makers:
            return super().native_optimizer(rule, **s)
        settings: dict[str, Any] = {k: v for k, v in s.items() if not k.startswith("beta")}
        if rule == "adam":
            settings["betas"] = s["beta1"], s["beta2"]
        return makers[rule](list(self.values.values()), **settings)
