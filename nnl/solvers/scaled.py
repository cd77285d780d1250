# SPDX-License-Identifier: Apache-2.0
"""Updates with gradients of a scaled loss, decided where the gradients are: nothing waits.

Source: Micikevicius et al., Mixed Precision Training, arXiv:1710.03740, section 3.2.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import Spec
from nnl.core.graph.dispatch import apply
from nnl.core.graph.node import Value
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS, Cost, Sample, op
from nnl.core.settings.context import STATE
from nnl.solvers.base import Solver
from nnl.solvers.hyperparameters import not_negative

logger = logging.getLogger("nnl")


@op("finite_check", outputs=("found",), keep=("x",))
class finite_check:
    """Whether an element of any array is infinite, and whether one is not a number.

    Args:
        x: Arrays of any shapes, floating point.
    Returns:
        Two bool.
    """

    def infer(self, *x):
        return Spec.of((2,), np.bool_)

    def forward(self, xp, *x):
        found = xp.zeros(2, np.bool_)
        for a in x:
            found[0] |= xp.isinf(a).any()
            found[1] |= xp.isnan(a).any()
        return found

    def cost(self, *x):
        return Cost(sum(2 * a.size for a in x), sum(a.nbytes for a in x))

    def samples(rng):
        x = rng.normal(size=(2, 3))
        for bad in (0.0, np.inf, -np.inf, np.nan):
            yield Sample(x, np.array([1.0, bad]), grad=(False, False))


@op("follow_loss_scale", keep=("found", "scale", "counts"), writes=("scale", "counts"), view=True)
class follow_loss_scale:
    """Divide the scale by `factor` if something was found, multiply it after `steps` steps without.

    Args:
        found: Two bool, the answer of finite_check.
        scale: float32, rank 0; stays within [low, high].
        counts: Two int64: steps since the scale has changed, and steps that found something.
    """

    factor: float = 2.0
    steps: int = 2000
    low: float = 2.0**-126
    high: float = 2.0**127

    def infer(self, found, scale, counts):
        return found

    def forward(self, xp, found, scale, counts):
        bad = found.any()
        after = xp.where(bad, 0, counts[0] + 1)
        grown = after >= self.steps
        lower = xp.maximum(scale / self.factor, self.low)
        higher = xp.minimum(scale * self.factor, self.high)
        scale[...] = xp.where(bad, lower, xp.where(grown, higher, scale))
        counts[0] = xp.where(grown, 0, after)
        counts[1] += bad
        return found

    def cost(self, found, scale, counts):
        return Cost(5, 42)

    def samples(rng):
        for found, good in (((False, False), 1), ((False, False), 2), ((True, False), 2)):
            yield Sample(
                np.array(found), np.array(8.0, np.float32), np.array([good, 5]),
                steps=3, grad=(False,) * 3,
            )  # fmt: skip


@op("clipped_scale", keep=("scale", "g"))
class clipped_scale:
    r"""What gradients are divided by so that their norm is at most $c$: $\max(s, \|g\| / c)$.

    Args:
        scale: The loss scale $s$, float32 of rank 0.
        g: Gradients of any shapes; the norm is that of all their elements.
        clip_norm: $c$, more than 0.
    Source: Pascanu et al., arXiv:1211.5063, section 3.2.
    """

    clip_norm: float

    def infer(self, scale, *g):
        return scale

    def forward(self, xp, scale, *g):
        flat = [a.reshape(-1).astype(np.float32) for a in g]
        squares = sum([xp.vdot(a, a) for a in flat])
        return xp.maximum(scale, xp.sqrt(squares) / xp.float32(self.clip_norm))

    def cost(self, scale, *g):
        return Cost(sum(2 * a.size for a in g), sum(a.nbytes for a in g))

    def samples(rng):
        for clip_norm in (0.01, 0.5, 100.0):
            x, y = rng.normal(size=(2, 3)), rng.normal(size=4)
            yield Sample(np.array(8.0, np.float32), x, y, clip_norm=clip_norm, grad=(False,) * 3)


def _written(attrs: Any) -> tuple[int, ...]:
    return tuple(attrs.rule.op.written(attrs.rule))


@op("guarded_step", keep=("arrays",), writes=_written, view=True)
class guarded_step:
    r"""One step of a solver's rule with the gradient $g / s + \lambda w$, or none at all.

    Args:
        arrays: The inputs of the rule, then two bool: if one is True nothing changes; then the loss
            scale $s$, float32 of rank 0.
        rule: The attributes of the rule.
        decay: $\lambda$.
    """

    rule: object
    decay: float = 0.0

    def infer(self, *arrays):
        return arrays[0]

    def forward(self, xp, *arrays):
        *own, found, scale = arrays
        rule: Any = self.rule
        w, g = own[:2]
        new = list(own)
        for i in _written(self):
            new[i] = own[i].copy()
        wide = np.float32 if w.dtype.itemsize == 2 else w.dtype
        with np.errstate(invalid="ignore"):  # infinite gradients, which change nothing
            new[1] = (g.astype(wide) / scale).astype(wide)
        if self.decay:
            new[1] += self.decay * w
        rule.forward(xp, *new)
        bad = found.any()
        for i in _written(self):
            own[i][...] = xp.where(bad, own[i], new[i])
        return w

    def cost(self, *arrays):
        return Cost(6 * arrays[0].size, sum(2 * a.nbytes for a in arrays if a is not None))

    def samples(rng):
        rule = OPS["momentum_update"].attrs(momentum=0.5)
        for found in ((False, False), (True, False), (False, True)):
            w, g, m = (rng.normal(size=(2, 3)) for _ in range(3))
            yield Sample(
                w, g, m, np.array(3), np.array(0.1), np.array(found), np.array(8.0, np.float32),
                rule=rule, decay=0.1, grad=(False,) * 7,
            )  # fmt: skip


@op("values_now", outputs=("*y",), keep=("x",))
class values_now:
    """Copies of arrays, which stay as they are where the arrays are written later."""

    def infer(self, *x):
        return x

    def forward(self, xp, *x):
        return tuple([xp.array(a) for a in x])

    def cost(self, *x):
        return Cost(0, sum(2 * a.nbytes for a in x))

    def samples(rng):
        yield Sample(rng.normal(size=(2, 3)), np.arange(3), grad=(False, False))


def _undone(attrs: Any) -> tuple[int, ...]:
    return (0, *range(2, 2 + attrs.count))


@op("undo_step", keep=("arrays",), writes=_undone, view=True)
class undo_step:
    """Take back what a step has written if its loss, or some of that, is not finite.

    Args:
        arrays: Two int64, how many steps were taken back, in all and now in a row; the two bool of
            finite_check; the arrays, then what each of them was before.
        count: How many arrays.
        most: Of such steps in a row, which then raise; 0 is none. Where numpy computes that is
            seen, and the first one of a row is a warning.
    Raises:
        ValueError: So many steps in a row were taken back.
    """

    count: int
    most: int = 0

    def infer(self, *arrays):
        return arrays[0]

    def forward(self, xp, *arrays):
        tally, lost = arrays[:2]
        bad = lost.any()
        tally[0] += bad
        tally[1] = xp.where(bad, tally[1] + 1, 0)
        own, before = arrays[2 : 2 + self.count], arrays[2 + self.count :]
        for a, old in zip(own, before, strict=True):
            a[...] = xp.where(bad, old, a)
        if xp is np and self.most and bad:
            if tally[1] == 1:
                logger.warning("%s", left_out(int(tally[0]), self.most))
            if tally[1] >= self.most:
                raise ValueError(not_finite(int(tally[1])))
        return tally

    def cost(self, *arrays):
        return Cost(3, sum(2 * a.nbytes for a in arrays))

    def samples(rng):
        for lost in ((False, False), (True, False)):
            a, b, c, d = (rng.normal(size=n) for n in (3, 2, 3, 2))
            flags, tally = np.array(lost), np.array([3, 1])
            yield Sample(tally, flags, a, b, c, d, count=2, grad=(False,) * 6)


def left_out(count: int, most: int) -> str:
    """What a warning says at the first of such losses in a row."""
    return (
        "DynamicLossScalingUpdater.update: the loss of a batch is not finite: it is left out, as "
        f"are those like it that follow ({count} so far; {most} in a row are an error)"
    )


def not_finite(count: int) -> str:
    """What an error says after so many losses in a row."""
    return (
        f"the losses of {count} batches in a row were not finite; parameters, statistics and the "
        "loss scale are as before them: look for inf or nan in the data and the parameters"
    )


LOWEST, HIGHEST = 2.0**-126, 2.0**127  # normal float32 powers of two: the start gradient is one


class LossScale:
    r"""A loss scale that lives where the gradients are, and updates that follow it.

    Where a gradient is not finite, the update is left out and
    $$s \leftarrow \max(\mathit{low}, s / \mathit{factor})$$; after so many updates without that,
    $$s \leftarrow \min(\mathit{high}, s \cdot \mathit{factor}).$$

    Args:
        solver: Whose parameters are updated; or several, with other settings for other parameters,
            which then all update or none does.
        scale: First loss scale.
        factor: What it is divided and multiplied by.
        steps: How many updates in a row must be finite before it grows.
        low, high: Its limits.

    Attributes:
        value: The scale, to start backward() from.
        counts: Updates since it has changed, and updates that were left out.
        lost: Updates of a loss that was not finite: all, and now in a row.
    Source: Micikevicius et al., Mixed Precision Training, arXiv:1710.03740, section 3.2.
    Example:
        >>> w = array([1])
        >>> w.need_grad = True
        >>> solver = S.Sgd(0.1)
        >>> solver.set_parameters({"w": w})
        >>> scale = S.LossScale(solver, scale=8)
        >>> for step in range(2):
        ...     solver.zero_grad()
        ...     F.sum(w**2).backward(scale.value)  # the gradient begins with the scale
        ...     if step == 1:
        ...         w.g = np.inf
        ...     scale.update()
        >>> w.d, scale.value.data  # one step of 0.1 * 2 w; the second was left out
        (array([0.8], dtype=float32), array(4., dtype=float32))
    """

    def __init__(
        self,
        solver: Solver | Sequence[Solver],
        scale: float,
        factor: float = 2.0,
        steps: int = 2000,
        low: float = LOWEST,
        high: float = HIGHEST,
    ) -> None:
        self.solvers = [solver] if isinstance(solver, Solver) else list(solver)
        self.value = NdArray.from_numpy_array(np.array(scale, np.float32))
        self.counts = NdArray.from_numpy_array(np.zeros(2, np.int64))
        self.lost = NdArray.from_numpy_array(np.zeros(2, np.int64))
        self._follow = OPS["follow_loss_scale"].attrs(
            factor=factor, steps=max(steps, 1), low=low, high=high
        )
        self._plan: Any = None

    def set(self, scale: float) -> None:
        """Go on from another scale; the array stays where it is, so that recorded plans find it."""
        self.value.settle()
        space = next(iter(self.value.bufs))
        self.value.touch(space)[...] = scale

    def update(
        self,
        weight_decay: float | Sequence[float] = 0.0,
        clip_norm: float = 0.0,
        loss: Any = None,
        undo: Sequence[tuple[NdArray, NdArray]] = (),
        most: int = 0,
    ) -> None:
        """Update the parameters if all gradients are finite, and let the scale follow.

        Gradients that are lazily zero are skipped, as in Solver.update().

        Args:
            weight_decay: Rate of the weights' decay, that of each solver if there are several.
            clip_norm: The gradients, without the decay, are scaled down together to a norm of at
                most this; 0 changes nothing.
            loss: NdArray, or Variable, whose gradients they are. Where it or one of `undo` is not
                finite, a smaller scale cannot help: nothing changes, but `lost` counts.
            undo: Arrays that the pass has written, such as running statistics, each with what it
                was before, and then is again.
            most: Of such updates in a row, which then raise, where the host computes; 0 is none.
        Raises:
            ValueError: clip_norm is negative or not finite.
        """
        limit = not_negative("LossScale.update", "clip_norm", clip_norm)
        now = STATE.interpreter.now
        rates = [weight_decay] if isinstance(weight_decay, (int, float)) else weight_decay
        updates = [
            (attrs, entry)
            for solver, rate in zip(self.solvers, rates, strict=True)
            for _, entries in solver._alike().values()
            for attrs in (self._guarded(solver, entries[0], rate),)
            for entry in entries
        ]
        found = [
            (attrs, e, g) for attrs, e in updates if (g := now.gradient(e.variable)) is not None
        ]
        if not now.has_values:
            own = [Variable.of_edge(Value.leaf(nd), nd) for nd in (self.value, self.counts)]
            given = [] if loss is None else self._more(loss, undo)
            more = [v if isinstance(v, Variable) else now.variable(v) for v in given]
            calls = [(e.variable, g, *e.inputs) for _, e, g in found]
            self._record(limit, most, [attrs for attrs, _, _ in found], [*calls, own, more])
            return
        arrays = [
            (e.variable._data, g, *[None if v is None else v._data for v in e.inputs])
            for _, e, g in found
        ]
        every = [attrs for attrs, _, _ in found]
        given = () if loss is None else tuple(self._more(loss, undo))
        self._plan = now.executor.run_recorded(
            (*every, self._follow, limit, most),
            [*arrays, (self.value, self.counts), given],
            partial(self._record, limit, most, every),
            self._plan,
        )

    def _more(self, loss: Any, undo: Sequence[tuple[NdArray, NdArray]]) -> list[Any]:
        """The loss and the inputs of undo_step that are not the scale's."""
        return [loss, self.lost, *[a for a, _ in undo], *[old for _, old in undo]]

    def _guarded(self, solver: Solver, entry: Any, decay: float) -> Any:
        """The attributes of a solver's steps for such a parameter."""
        rule = solver._step(entry)
        if solver.fused and decay:
            rule, decay = solver._step(entry, decay), 0.0
        return OPS["guarded_step"].attrs(rule=rule, decay=decay)

    def _record(
        self,
        limit: float,
        most: int,
        attrs: Sequence[Any],
        inputs: Sequence[Sequence[Variable | None]],
    ) -> list[Variable]:
        """Call the ops.

        Args:
            limit: Of the norm of all gradients, or 0.
            attrs: Of guarded_step, for each parameter.
            inputs: Those of the solver's rule for each parameter, then scale and counts, then what
                belongs to a loss, if there is one.
        """
        *calls, own, more = inputs
        value, counts = own
        if not calls:
            return []
        grads = [x[1] for x in calls]
        if more:
            before = OPS["values_now"](*own)
            loss, lost, *arrays = more
            n = len(arrays) // 2
            watched = [v for v in (loss, *arrays[:n]) if v.spec.is_float]
            grads += watched
        found = OPS["finite_check"](*grads)
        by = OPS["clipped_scale"](value, *grads[: len(calls)], clip_norm=limit) if limit else value
        step = OPS["guarded_step"]
        ends = [apply(step, a, (*x, found, by)) for a, x in zip(attrs, calls, strict=True)]
        ends.append(apply(OPS["follow_loss_scale"], self._follow, (found, value, counts)))
        if more:
            arrays = [*own, *arrays[:n], *before, *arrays[n:]]
            bad = OPS["finite_check"](*watched)
            ends.append(OPS["undo_step"](lost, bad, *arrays, count=n + 2, most=most))
        return ends
