# SPDX-License-Identifier: Apache-2.0
"""Fuse convolution with normalization by known statistics, an addition and an activation, and the
gradients by weights and bias."""

from __future__ import annotations

from typing import Any

from nnl.ext.library import Library, kernel_names
from nnl.graph.passes.rewriter import Rewriter
from nnl.graph.program import Program, Step

FUSED = "convolution_fused"
WEIGHT_BIAS = "convolution_weight_bias"
# Ops whose attributes all stand at what the kernel computes.
ACTIVATIONS = {
    "relu": "relu", "relu6": "relu6", "sigmoid": "sigmoid", "tanh": "tanh", "swish": "swish",
    "hard_sigmoid": "hard_sigmoid", "gelu": "gelu",
}  # fmt: skip


def fuse_convolution(program: Program, lib: Library) -> None:
    """activation(normalize(convolution(x, w) + b) + z) becomes one step.

    Normalization only where it uses the running statistics: then it is a scale and a shift of every
    map, and the scale goes into the weights. What else reads an intermediate value prevents fusion,
    in training the gradient of the activation, if it needs the input of it.
    """
    if FUSED in kernel_names(lib):
        _Fuser(program, lib).run()


class _Fuser(Rewriter):
    def run(self) -> None:
        for step in self.program.steps:
            if step.op == "convolution" and step.native and step not in self.gone:
                self._fuse(step)
        self.finish()

    def _fuse(self, conv: Step) -> None:
        y, parts, z, activation = conv.outs[0], [conv], 0, "identity"
        norm = self.only_reader(y)
        if norm is not None and self._folds(norm, y):
            parts.append(norm)
            y = norm.outs[0]
        else:
            norm = None
        reader = self.only_reader(y)
        if reader is not None and reader.op == "add2":
            a, b = reader.ins
            other = b if a == y else a
            if a != b and self.spec(other) is self.spec(y):
                z = other
                parts.append(reader)
                y = reader.outs[0]
                reader = self.only_reader(y)
        if reader is not None and reader.op in ACTIVATIONS and reader.native:
            activation = ACTIVATIONS[reader.op]
            parts.append(reader)
            y = reader.outs[0]
        last = parts[-1]
        if len(parts) == 1 or last.second != conv.second:
            return
        if not self.quiet(conv, last, {self.program.root(i) for p in parts for i in p.ins}, set()):
            return
        x, w, b = (*conv.ins, 0)[:3]
        before: list[Step] = []
        scale = 0
        if norm is not None:
            scale, b, before = self._scale_and_shift(norm, b)
        new = Step.of(FUSED, {**conv.attrs, "activation": activation}, (x, w, b, z, scale), (y,))
        new.second = conv.second
        self.replace(parts, last, new, *before)

    def _folds(self, norm: Step, y: int) -> bool:
        """Whether a step normalizes the maps of y by running statistics."""
        if norm.op != "batch_normalization" or norm.attrs["batch_stat"] or norm.writes:
            return False
        if norm.attrs["axes"] != (1,) or norm.ins[0] != y:
            return False
        return not any(o in self.readers or o in self.program.kept for o in norm.outs[1:])

    def _scale_and_shift(self, norm: Step, b: int) -> tuple[int, int, list[Step]]:
        """Slots of the scale and the shift of every map, and the steps that compute them."""
        program, steps = self.program, []
        _, beta, gamma, mean, variance = norm.ins
        spec = self.spec(mean)

        def call(op: str, *ins: int, **attrs: Any) -> int:
            out = program.new_slot(spec)
            steps.append(Step.of(op, attrs, ins, (out,), norm.second))
            return out

        sum_ = call("add_scalar", variance, val=norm.attrs["eps"], inplace=False)
        scale = call("pow_scalar", sum_, val=-0.5, inplace=False)
        if gamma:
            scale = call("mul2", scale, gamma, inplace=False)
        if b:
            mean = call("sub2", mean, program.alias(b, spec.shape), inplace=False)
        shift = call(
            "mul_scalar", call("mul2", mean, scale, inplace=False), val=-1.0, inplace=False
        )
        if beta:
            shift = call("add2", shift, beta, inplace=False)
        maps = (spec.size,)
        return program.alias(scale, maps), program.alias(shift, maps), steps


def fuse_bias_gradient(program: Program, lib: Library) -> None:
    """The gradients of a convolution by weights and bias become one step: one pass over gy.

    For bfloat16, where it takes 0.89 to 0.98 times as long as two. With float32, or float32 data
    and bfloat16 gradients, oneDNN's sums are slow: up to 1.4 times as long.
    """
    if WEIGHT_BIAS in kernel_names(lib):
        _BiasFuser(program, lib).run()


class _BiasFuser(Rewriter):
    def run(self) -> None:
        for step in self.program.steps:
            if step.op == "convolution_weight" and step.native:
                self._fuse(step)
        self.finish()

    def _fuse(self, weight: Step) -> None:
        gy = weight.ins[1]
        if any(self.spec(i).dtype.name != "bfloat16" for i in weight.ins):
            return
        rank = self.spec(gy).ndim
        channel = rank - 1 if weight.attrs["channel_last"] else weight.attrs["base_axis"]
        axes = tuple(i for i in range(rank) if i != channel)
        total = next((r for r in self.readers[gy] if self._sums(r, weight, axes)), None)
        if total is None or weight in self.gone or weight.converts:
            return
        first, last = sorted((weight, total), key=self.order.__getitem__)
        if not self.quiet(first, last, {self.program.root(i) for i in weight.ins}, set()):
            return
        outs = (weight.outs[0], total.outs[0])
        new = Step.of(WEIGHT_BIAS, weight.attrs, weight.ins, outs, weight.second)
        self.replace([weight, total], first, new)

    def _sums(self, step: Step, weight: Step, axes: tuple[int, ...]) -> bool:
        return (
            step.op == "sum"
            and step.native
            and step.second == weight.second
            and step not in self.gone
            and (step.attrs["axes"], step.attrs["keep_dims"]) == (axes, False)
            and not step.converts
        )
