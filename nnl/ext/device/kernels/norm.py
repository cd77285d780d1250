# SPDX-License-Identifier: Apache-2.0
"""Normalizations and their gradients, as element-wise programs with reductions one after another.

The statistics take one pass over x: sums of x - k and of its square, k being the first element of
each group, so that nothing cancels where the mean is far from 0. A second pass applies them. The
gradient takes two passes too. All orders in memory and all mixtures of element types are those of
programs. Where cuDNN has a kernel for a whole normalization, that one is asked first.

The fused kernels are described in cpp/src/kernels/norm_forward.cpp and norm_backward.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from nnl.core.ops.elementwise import Writer
from nnl.ext.device.kernels.chain import At, Chain
from nnl.ext.device.kernels.elementwise import make
from nnl.ext.device.kernels.generator import Output
from nnl.ext.device.kernels.module import Ins, Outs, is_real, register, same_size
from nnl.ext.device.kernels.patterns import Space, memory_order, pattern_of, strides_of
from nnl.ext.device.registry import Kernel, Operand
from nnl.ext.library import Abilities

F32 = np.dtype(np.float32)


class Part(NamedTuple):
    """An array of a stage: where it is, and its strides along the axes of the view."""

    operand: Operand
    strides: tuple[int, ...]
    at: At


class Stages:
    """Builds a chain of programs over one view of x.

    Attributes:
        shape: In which x is seen: its channels split in (groups, rest) if there are groups.
        axes: The axes over which statistics are taken.
        count: Elements of each mean.
        ok: Whether every stage has a kernel so far.
    """

    def __init__(
        self, x: Operand, axes: Sequence[int], channel: int | None = None, groups: int = 1
    ) -> None:
        self.channel, self.groups = channel, groups
        order = memory_order(len(x.shape), x.channels_last)
        if channel is not None:
            order = [b for a in order for b in self._folded_axes(a)]
        self.shape = self.fold_shape(x.shape)
        self.space = Space(self.shape, tuple(order))
        self.axes = tuple(axes)
        self.count = math.prod(self.shape[a] for a in axes)
        kept = tuple(1 if a in self.axes else n for a, n in enumerate(self.shape))
        self.statistic = Operand(kept, F32)
        self.chain, self.ok = Chain(), True

    def _folded_axes(self, a: int) -> list[int]:
        assert self.channel is not None
        if a == self.channel:
            return [a, a + 1]
        return [a + (a > self.channel)]

    def fold_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape with its channels split."""
        c = self.channel
        if c is None:
            return tuple(shape)
        split = (1, 1) if shape[c] == 1 else (self.groups, shape[c] // self.groups)
        return (*shape[:c], *split, *shape[c + 1 :])

    def part(self, x: Operand | None, at: At) -> Part | None:
        """An array of the rank of x, or of the statistics."""
        if x is None:
            return None
        own, shape = strides_of(x.shape, x.channels_last), x.shape
        if len(shape) < len(self.shape):
            c = self.channel or 0
            step = own[c] * (shape[c] // self.groups if shape[c] > 1 else 0)
            own = (*own[:c], step, *own[c:])
            shape = self.fold_shape(shape)
        return Part(x, tuple(0 if n == 1 else s for n, s in zip(shape, own, strict=True)), at)

    def scratch(self) -> Part:
        """Memory for a value of each statistic."""
        found = self.part(self.statistic, self.chain.scratch(self.statistic.nbytes))
        assert found is not None
        return found

    def first(self, x: Part) -> Part:
        """The first element of each group."""
        kept = tuple(0 if a in self.axes else s for a, s in enumerate(x.strides))
        return x._replace(strides=kept)

    def add(
        self,
        ins: Sequence[Part | None],
        write: Callable[..., Sequence[int]],
        outs: Sequence[tuple[Part, str | None, float]],
        axes: Sequence[int] = (),
        small: bool = False,
    ) -> None:
        """A stage: `write` gets a Writer and the number of each input, None for one left out.

        Args:
            outs: Where each value that `write` returns goes, how it is reduced, and its scale.
            axes: What is reduced.
            small: Over the statistics instead of all elements.
        """
        space = Space.of(self.statistic.shape) if small else self.space
        given = [p for p in ins if p is not None]
        numbers = iter(range(len(given)))
        w = Writer([()] * len(given))
        values = write(w, *(None if p is None else next(numbers) for p in ins))
        sources = [(p.operand, pattern_of(space, p.strides)) for p in given]
        outputs = [
            Output(v, self._seen(p), kind, scale)
            for v, (p, kind, scale) in zip(values, outs, strict=True)
        ]
        kernel = make(space, sources, w.code, w.constants, outputs, axes)
        stored = [p for p, kind, _ in outs if kind is None]
        if kernel is None or not all(pattern_of(space, p.strides).is_dense for p in stored):
            self.ok = False
        else:
            self.chain.add(kernel, [p.at for p in given], [p.at for p, _, _ in outs])

    def _seen(self, p: Part) -> Operand:
        x = p.operand
        if len(x.shape) == len(self.shape):
            return x
        return Operand(self.fold_shape(x.shape), x.dtype)

    def finish(self, overwrite: Sequence[tuple[int, int]]) -> Kernel | None:
        self.chain.overwrite = set(overwrite)
        return self.chain.finish() if self.ok else None


def statistics(s: Stages, x: Part) -> tuple[Part, Part]:
    """The stage that takes the means of x - k and of its square."""
    first, second = s.scratch(), s.scratch()

    def write(w: Writer, x: int, k: int) -> Sequence[int]:
        d = w("subtract", x, k)
        return d, w("square", d)

    scale = 1.0 / s.count
    outs = [(first, "sum", scale), (second, "sum", scale)]
    s.add([x, s.first(x)], write, outs, s.axes)
    return first, second


def inverse_of(w: Writer, variance: int, eps: float) -> int:
    return w("inverse_root", w("add", variance, w.number(eps)))


def fused_forward(
    s: Stages,
    ins: Ins,
    outs: Outs,
    eps: float,
    *,
    batch_stat: bool = True,
    decay: float = 0.0,
    relu: bool = False,
) -> Kernel | None:
    """act((x - mean) / sqrt(variance + eps) gamma + beta + z).

    Args:
        ins: x, beta, gamma, running mean, running variance, z; all but x may be None.
    """
    parts = [s.part(x, At("in", i)) for i, x in enumerate([*ins, *[None] * (6 - len(ins))])]
    x, beta, gamma, mean, variance, z = parts
    y, *results = (s.part(o, At("out", i)) for i, o in enumerate(outs))
    assert x is not None and y is not None
    centre, inverse = s.scratch(), s.scratch()
    targets = [p for p in (centre, inverse, *results) if p is not None]
    if not batch_stat:

        def known(w: Writer, m: int, v: int) -> Sequence[int]:
            return (w("copy", m), inverse_of(w, v, eps), w("copy", m), w("copy", v))[: len(targets)]

        s.add([mean, variance], known, [(p, None, 1.0) for p in targets], small=True)
    else:
        first, second = statistics(s, x)
        running = [p for p in (mean, variance) if p is not None]
        n = s.count
        unbiased = n / (n - 1) if n > 1 else math.nan

        def settle(
            w: Writer, k: int, a: int, b: int, m: int | None, v: int | None
        ) -> Sequence[int]:
            centre = w("add", k, a)
            spread = w("maximum", w("subtract", b, w("square", a)), w.number(0.0))
            values = [centre, inverse_of(w, spread, eps), centre, spread][: len(targets)]
            for old, new, factor in ((m, centre, 1.0), (v, spread, unbiased)):
                if old is not None:
                    part = w("multiply", new, w.number((1.0 - decay) * factor))
                    values.append(w("multiply_add", old, w.number(decay), part))
            return values

        s.add(
            [s.first(x), first, second, mean, variance],
            settle,
            [(p, None, 1.0) for p in (*targets, *running)],
            small=True,
        )

    def apply(
        w: Writer, x: int, m: int, i: int, b: int | None, g: int | None, z: int | None
    ) -> Sequence[int]:
        y = w("multiply", w("subtract", x, m), i)
        if g is not None:
            y = w("multiply", y, g)
        if b is not None:
            y = w("add", y, b)
        if z is not None:
            y = w("add", y, z)
        return (w("relu", y) if relu else y,)

    s.add([x, centre, inverse, beta, gamma, z], apply, [(y, None, 1.0)])
    return s.finish([(0, i) for i in (0, 5) if i < len(ins) and same_size(ins[i], outs[0])])


def others(rank: int, axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(a for a in range(rank) if a not in axes)


def _fits(ins: Ins, outs: Outs) -> bool:
    x = ins[0]
    if x is None or not is_real(*ins, *outs) or not x.size:
        return False
    order = Space.of(x.shape, x.channels_last)
    images = [outs[0], *(z for z in ins[5:6] if z is not None)]
    return all(Space.of(o.shape, o.channels_last) == order for o in images)


def _batch(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    x = ins[0]
    if x is None or not _fits(ins, outs):
        return None
    s = Stages(x, others(len(x.shape), attrs["axes"]))
    return fused_forward(
        s, ins, outs, float(attrs["eps"]),
        batch_stat=bool(attrs["batch_stat"]), decay=float(attrs["decay_rate"]),
        relu=attrs.get("nonlinearity") == "relu",
    )  # fmt: skip


def _layer(kept: Callable[[dict[str, Any]], Sequence[int]], attrs: dict[str, Any], ins: Ins,
           outs: Outs) -> Kernel | None:  # fmt: skip
    x = ins[0]
    if x is None or not _fits(ins, outs):
        return None
    s = Stages(x, others(len(x.shape), kept(attrs)))
    return fused_forward(s, ins, outs, float(attrs["eps"]))


def _group(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    x = ins[0]
    if x is None or not _fits(ins, outs):
        return None
    c, groups = attrs["channel_axis"], attrs["num_groups"]
    kept = [c, *(a + (a > c) for a in attrs["batch_axis"])]
    s = Stages(x, others(len(x.shape) + 1, kept), c, groups)
    return fused_forward(s, ins, outs, float(attrs["eps"]))


def _register(name: str, setup: Any, abilities: Abilities | None = None) -> None:
    register(name, abilities=abilities)(setup)
    register(f"{name}_with_statistics")(setup)


_register("batch_normalization", _batch)
_register("fused_batch_normalization", _batch, Abilities(appends=("add2", "relu")))
_register("layer_normalization", partial(_layer, lambda a: a["batch_axis"]))
_register(
    "instance_normalization", partial(_layer, lambda a: (*a["batch_axis"], a["channel_axis"]))
)
_register("tensor_normalization", partial(_layer, lambda a: a["axes"]))
_register("weight_standardization", partial(_layer, lambda a: (a["channel_axis"],)))
_register("group_normalization", _group)
