# SPDX-License-Identifier: Apache-2.0
"""Incremental network quantization: weights are fixed to powers of two, half of them at a time.

A function has a memory: how often it was executed, and which weights it has fixed at which values.
It is kept in the hidden input `rng` after the two words of the random stream: the number of
executions, then the fixed weights as float64, NaN for those that are free. With the stream alone
every execution is the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl.core.arguments.annotations import checked
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import ShapeError, Spec
from nnl.core.graph.dispatch import apply
from nnl.core.graph.node import Value
from nnl.core.graph.variable import Variable
from nnl.core.ops import random as nnl_random
from nnl.core.ops.arguments import write_to
from nnl.core.ops.op import Sample, op
from nnl.functions.binary import WithAffine, WithConvolution

CATEGORY = "Quantization"

__all__ = ["inq_affine", "inq_convolution"]

ALGORITHMS = ("largest_abs", "random")


def powers_of_two(xp, weight, bits):
    """Every weight replaced by 0 or the nearest of the signed powers that `bits` bits can number.

    With n the exponent of the largest absolute value, they are 2**n and the next lower ones, as
    many as 2**(bits - 2); halfway between two counts as the larger one.
    """

    def exponents(size):
        """floor(log2(4/3 size))"""
        fraction, exponent = xp.frexp(size)  # fraction in [1/2, 1)
        return exponent - (fraction < 0.75)

    size = xp.abs(weight)
    highest = int(exponents(size.max()))
    lowest = highest + 1 - 2 ** (bits - 2)
    power = xp.ldexp(weight.dtype.type(1), xp.maximum(exponents(size), max(lowest, -1080)))
    xp.copyto(power, 0, where=size < 2.0 ** max(lowest - 1, -1080))
    return xp.copysign(power, weight)


class INQ:
    """What inq_affine and inq_convolution have in common."""

    def infer(self, x, weight, indicator_fixedweights, bias=None, rng=None):
        name = self.op.name
        if self.num_bits < 2:
            raise ValueError(f"{name}: num_bits is {self.num_bits}, wanted at least 2")
        if self.selection_algorithm not in ALGORITHMS:
            raise ValueError(
                f"{name}: selection_algorithm is {self.selection_algorithm!r}, "
                f"wanted one of {', '.join(ALGORITHMS)}"
            )
        y = self.infer_inner(x, weight, bias)
        if indicator_fixedweights.shape != weight.shape:
            raise ShapeError(
                f"{name}: indicator_fixedweights {indicator_fixedweights} must have the shape of "
                f"weight {weight}"
            )
        return y

    host = "which weights are fixed depends on how many are"

    def forward(self, xp, x, weight, indicator_fixedweights, bias, rng):
        fixed, memory, count = indicator_fixedweights, None, 0
        if rng.size > 2:
            count, memory = int(rng[2]), rng[3:].view(np.float64).reshape(weight.shape)
            weight[...] = xp.where(xp.isnan(memory), weight, memory)
            rng[2] += np.uint64(1)
        if count in self.inq_iterations:
            if count == self.inq_iterations[-1]:
                fixed[...] = 1
            else:
                self.fix_half(xp, weight.reshape(-1), fixed.reshape(-1), rng[:2])
        chosen = fixed != 0
        if chosen.any():
            weight[chosen] = powers_of_two(xp, weight, self.num_bits)[chosen]
        if memory is not None:
            memory[...] = xp.where(chosen, weight, np.nan)
        return self.inner().forward(xp, x, weight, bias)

    def fix_half(self, xp, weight, fixed, rng):
        """Fix half of the free weights: the largest ones, or each with a chance of one half."""
        free = xp.flatnonzero(fixed == 0)
        if self.selection_algorithm == "random":
            fixed[free[nnl_random.uniform(rng, free.shape) < 0.5]] = 1
        else:
            order = xp.argsort(-xp.abs(weight[free]), kind="stable")
            fixed[free[order[: free.size // 2]]] = 1

    def vjp(self, gy, *, x, weight, need):
        gx, gw, gb = self.inner().vjp(gy, x=x, weight=weight, need=(need[0], need[1], need[3]))
        return gx, gw, None, gb, None

    @classmethod
    def samples(cls, rng):
        for i, (x, w, b, attrs) in enumerate(cls.arrays(rng)):
            fixed = rng.integers(0, 2, w.shape)
            grad = (True, True, False, b is not None)
            yield Sample(x, w, fixed, b, num_bits=3 + i, grad=grad, **attrs)
            for algorithm in ALGORITHMS:
                yield Sample(
                    x, w, fixed, b, inq_iterations=(0, 3), selection_algorithm=algorithm,
                    grad=grad, **attrs,
                )  # fmt: skip


SETTINGS = {
    "integer": ("indicator_fixedweights",),
    "writes": ("weight", "indicator_fixedweights"),
    "at_most": {"num_bits": 64},
}


@op("inq_affine", nnp="INQAffine", **SETTINGS)
class inq_affine_op(INQ, WithAffine):
    """See inq_affine."""

    num_bits: int = 4
    inq_iterations: tuple[int, ...] = ()
    selection_algorithm: str = "largest_abs"
    seed: int = -1


@op("inq_convolution", nnp="INQConvolution", **SETTINGS)
class inq_convolution_op(INQ, WithConvolution):
    """See inq_convolution."""

    num_bits: int = 4
    inq_iterations: tuple[int, ...] = ()
    selection_algorithm: str = "largest_abs"
    seed: int = -1


def with_memory(function, inputs, outputs, **attributes):
    """Apply the op to the inputs and a memory of its own in which no weight is fixed."""
    seed = attributes["seed"]
    attrs = function._resolve(function.parse(inputs, dict(attributes))[1], inputs)
    size = inputs[1].spec.size
    memory = np.zeros(3 + size, np.uint64)
    memory[0] = seed if seed >= 0 else nnl_random.raw(nnl_random.stream(-1).data.data, 1)[0]
    memory[3:] = np.full(size, np.nan).view(np.uint64)
    nd = NdArray.holding(Spec.of(memory.shape, np.uint64), "host", memory)
    y = apply(function, attrs, (*inputs, Variable.of_edge(Value.leaf(nd), nd)))
    return y if outputs is None else write_to(function, outputs, y)


@checked
def inq_affine(
    x,
    weight,
    indicator_fixedweights,
    bias=None,
    base_axis: int = 1,
    num_bits: int = 4,
    inq_iterations: Sequence[int] = (),
    selection_algorithm: str = "largest_abs",
    seed: int = -1,
    n_outputs: int = -1,
    outputs: Any = None,
):
    r"""Affine map whose weights are fixed to powers of two in steps: $y = x W + b$.

    At every execution, the weights that were fixed before get their values back, whatever a solver
    made of them. If the number of executions so far is in inq_iterations, half of the free weights
    are fixed, and at the last of these all of them. Fixed weights are then replaced by the nearest
    of 0 and $\pm 2^k$, $n - 2^{b-2} < k \le n$, where
    $n = \lfloor \log_2 (4/3 \max |W|) \rfloor$ and b is num_bits.

    Args:
        x: (*batch, *in); the axes from `base_axis` on are flattened to K values.
        weight: (K, *out). Fixed ones are overwritten; all get gradients.
        indicator_fixedweights: Shape of weight: 1 where a weight is fixed, else 0. Overwritten when
            weights are fixed; gets no gradient.
        bias: Shape of *out, optional.
        base_axis: Number of batch axes; negative counts from the end.
        num_bits: Number of bits of a fixed weight, at most 64.
        inq_iterations: Number of executions after which weights are fixed, in ascending order.
        selection_algorithm: "largest_abs" fixes the half with the largest absolute values,
            "random" each weight with a chance of one half.
        seed: Of the random selection; -1 takes one from the stream that all functions share.
        n_outputs: Ignored.
        outputs: Array whose memory the result takes.
    Raises:
        ShapeError: base_axis is out of range, or the sizes do not fit.
        ValueError: num_bits is below 2 or above 64, or selection_algorithm is unknown.
    Source: Zhou et al., Incremental Network Quantization, arXiv:1702.03044.
    Example:
        >>> x, w, fixed = array([[1, 1]]), array([[0.7], [0.3]]), array([[1], [0]])
        >>> F.inq_affine(x, w, fixed).d  # 0.7 becomes 0.5, a power of two; 0.3 learns on
        array([[0.8]], dtype=float32)
    """
    return with_memory(
        inq_affine_op, (x, weight, indicator_fixedweights, bias), outputs, base_axis=base_axis,
        num_bits=num_bits, inq_iterations=tuple(inq_iterations),
        selection_algorithm=selection_algorithm, seed=seed,
    )  # fmt: skip


@checked
def inq_convolution(
    x,
    weight,
    indicator_fixedweights,
    bias=None,
    base_axis: int = 1,
    pad: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    group: int = 1,
    num_bits: int = 4,
    inq_iterations: Sequence[int] = (),
    selection_algorithm: str = "largest_abs",
    seed: int = -1,
    n_outputs: int = -1,
    outputs: Any = None,
):
    """Convolution, $y = w * x + b$, with weights fixed to powers of two in steps, see inq_affine.

    Args:
        x: (*batch, C, *S).
        weight: (O, C/group, *K). Fixed ones are overwritten; all get gradients.
        indicator_fixedweights: Shape of weight: 1 where a weight is fixed, else 0. Overwritten when
            weights are fixed; gets no gradient.
        bias: (O,), optional.
        base_axis, pad, stride, dilation, group: As for `convolution`.
        num_bits, inq_iterations, selection_algorithm, seed, n_outputs, outputs: As for inq_affine.
    Raises:
        ShapeError: As `convolution`, or indicator_fixedweights has another shape.
        ValueError: As `convolution` and inq_affine.
    Source: Zhou et al., Incremental Network Quantization, arXiv:1702.03044.
    Example:
        >>> x, w, fixed = array(np.ones((1, 1, 3))), array([[[0.7, 0.3]]]), array([[[1, 0]]])
        >>> F.inq_convolution(x, w, fixed).d
        array([[[0.8, 0.8]]], dtype=float32)
    """
    return with_memory(
        inq_convolution_op, (x, weight, indicator_fixedweights, bias), outputs,
        base_axis=base_axis, pad=pad, stride=stride, dilation=dilation, group=group,
        num_bits=num_bits, inq_iterations=tuple(inq_iterations),
        selection_algorithm=selection_algorithm, seed=seed,
    )  # fmt: skip
