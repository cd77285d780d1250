# SPDX-License-Identifier: Apache-2.0
"""Training in 16 bits: a loss scale that follows the range of the gradients."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import ShapeError
from nnl.core.graph.node import Value, capture
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS
from nnl.core.parameters.parameter import get_parameters
from nnl.core.settings.context import EPOCH, STATE
from nnl.solvers.base import Solver, on_device
from nnl.solvers.scaled import HIGHEST, LOWEST, LossScale, left_out, not_finite

logger = logging.getLogger("nnl")


class DynamicLossScalingUpdater:
    r"""One training step with a loss scale that is lowered on overflow and raised after a while.

    $$w \leftarrow \mathrm{update}(w, \nabla_w (s L) / s)$$ with the loss L and its scale s.

    A step runs forward, backward from the scale instead of 1, divides the gradients by the scale
    and updates. If a gradient is not finite the scale is divided by scaling_factor and the step
    runs again with the next data; after N steps without that it is multiplied. It stays between
    2^-126 and 2^127.

    Where the loss itself is not finite, or running statistics are not, a smaller scale cannot help:
    parameters, scale and whatever the pass has written stay as they were, and a warning says so
    once for such batches in a row. After max_tries of them update() raises ValueError. With a
    data_feeder the step runs again with the next data, without one update() returns.

    On a device, and inside nnl.compile, nothing waits for the gradients: a pass whose gradients are
    not finite changes no parameter and lowers the scale there, and the next update() goes on with
    it; the scale rises after N passes. Hooks are for the host, and the loss must be of rank 0.

    Args:
        solver: Solver whose parameters are updated.
        loss: Scalar Variable of a static graph; or a function that computes the loss, called for
            each pass, for dynamic graphs and inside nnl.compile.
        data_feeder: Called before each forward; writes the next data into the graph's inputs. Not
            inside nnl.compile, which would call it only once.
        scale: First loss scale; a power of two loses no precision.
        scaling_factor: Greater than 1.
        N: Steps between two raises.
        clear_buffer: Free intermediate arrays on the way.
        accum_grad: Forward and backward passes per update; their gradients add up.
        weight_decay: Rate given to solver.weight_decay before each update, None for none.
        comm: Communicator that sums the gradients over processes, None for one process.
        grads: The gradient arrays it sums.

    Attributes:
        scale: The loss scale of the next pass; may be set. On a device, reading it waits.
        overflows: How many passes had a gradient that was not finite; reading it waits, too.
        lost: How many passes were left out since their loss was not finite; likewise.

    Raises:
        ValueError: An argument is outside its range.
    Source: Micikevicius et al., Mixed Precision Training, arXiv:1710.03740, section 3.2.
    """

    max_tries = 100  # passes of one update() with non-finite gradients before it gives up

    def __init__(
        self,
        solver: Solver,
        loss: Variable | Callable[[], Variable],
        data_feeder: Callable[[], Any] | None = None,
        scale: float = 8.0,
        scaling_factor: float = 2.0,
        N: int = 2000,
        clear_buffer: bool = True,
        accum_grad: int = 1,
        weight_decay: float | None = None,
        comm: Any = None,
        grads: Sequence[NdArray] | None = None,
    ) -> None:
        name = "DynamicLossScalingUpdater"
        if not 1.0 < scaling_factor < math.inf:
            raise ValueError(
                f"{name}: scaling_factor is {scaling_factor}, wanted a finite number > 1"
            )
        if N < 0:
            raise ValueError(f"{name}: N is {N}, wanted a number of steps >= 0")
        if accum_grad < 1:
            raise ValueError(f"{name}: accum_grad is {accum_grad}, wanted a number >= 1")
        self.solver, self.loss, self.data_feeder = solver, loss, data_feeder
        self._there: LossScale | None = None
        self.scale, self.scaling_factor, self.N = scale, float(scaling_factor), int(N)
        self.clear_buffer, self.accum_grad = clear_buffer, int(accum_grad)
        self.weight_decay, self.comm = weight_decay, comm
        self.grads = list(grads) if grads is not None else []
        self._overflows = self._counter = self._lost = self._lost_in_a_row = 0
        self._written: list[tuple[NdArray, int]] | None = None  # by the latest pass
        self._always: list[tuple[NdArray, int]] = []  # by passes of a static graph
        self._seen = -1
        self._before: dict[int, tuple[NdArray, NdArray]] = {}  # arrays, which keep ids, and copies
        self._kept_loss = NdArray()
        self._loss: Any = self._kept_loss

    def update(self) -> None:
        """Run one training step.

        Raises:
            ValueError: The gradients, or the losses, of 100 passes in a row were not finite; the
                parameters are as before.
            NotImplementedError: There is a data_feeder, and nnl.compile records.
            ShapeError: The loss must have rank 0, and has not.
        """
        recording = not STATE.interpreter.has_values
        if recording and self.data_feeder is not None:
            raise NotImplementedError(
                "DynamicLossScalingUpdater.update: data_feeder would be called only once by "
                "nnl.compile; give the data to the compiled function as arguments"
            )
        if recording or (on_device() and self._is_rank_0()):
            self._update_without_looking()
            return
        tries = 0
        while tries < self.max_tries:
            before = [(nd, nd.read("host").copy()) for nd in self._statistics()]
            self._backward(self.scale)
            lost = self._is_lost()
            overflow = self.solver.check_inf_or_nan_grad()
            if self._agree(lost, overflow):
                for nd, value in before:
                    nd.data = value
                self._count_lost()
                if self.data_feeder is None:
                    return
                continue
            self._lost_in_a_row = 0
            if not overflow:
                self._apply()
                return
            tries += 1
            self._overflows += 1
            self._counter = 0
            self._rescale(1.0 / self.scaling_factor)
        raise ValueError(
            f"DynamicLossScalingUpdater.update: gradients were not finite in {self.max_tries} "
            f"passes in a row, down to the loss scale {self.scale:g}: look for the inf or nan in "
            "the data, the parameters or the loss"
        )

    @property
    def scale(self) -> float:
        """The loss scale; reading it waits for a device."""
        there = self._there
        return self._scale if there is None else float(there.value.read("host"))

    @scale.setter
    def scale(self, value: float) -> None:
        if not LOWEST <= value <= HIGHEST:
            raise ValueError(
                f"DynamicLossScalingUpdater: scale is {value}, wanted a number in [2^-126, 2^127]"
            )
        self._scale = float(value)
        if self._there is not None:
            self._there.set(self._scale)

    @property
    def overflows(self) -> int:
        """How many passes had gradients that were not finite."""
        there = self._there
        return self._overflows + (0 if there is None else int(there.counts.read("host")[1]))

    @property
    def lost(self) -> int:
        """How many passes were left out since their loss was not finite."""
        there = self._there
        return self._lost + (0 if there is None else int(there.lost.read("host")[0]))

    def _count_lost(self) -> None:
        self._lost += 1
        self._lost_in_a_row += 1
        if self._lost_in_a_row == 1:
            logger.warning("%s", left_out(self._lost, self.max_tries))
        if self._lost_in_a_row >= self.max_tries:
            row, self._lost_in_a_row = self._lost_in_a_row, 0
            raise ValueError(f"DynamicLossScalingUpdater.update: {not_finite(row)}")

    def _agree(self, lost: bool, overflow: bool) -> bool:
        """Whether the loss of any process is not finite."""
        if self.comm is None or not self.grads or not overflow:  # a sum with NaN is the same on all
            return lost
        flag = NdArray.from_numpy_array(np.array([lost], np.float32))
        self.comm.all_reduce([flag], division=False, inplace=False)
        return bool(flag.data[0])

    def _statistics(self) -> list[NdArray]:
        """Arrays that the next pass writes, as far as that is known before it."""
        if isinstance(self.loss, Variable):
            return [nd for nd, _ in self._written_by(self.loss)]
        if self._written is None:  # the first pass
            fixed = get_parameters(grad_only=False).values()
            return [v.data for v in fixed if not v.need_grad and v.data.written]
        return [nd for nd, _ in self._written]

    def _written_by(self, loss: Variable) -> list[tuple[NdArray, int]]:
        if loss is not self.loss:
            return written_by(loss)
        if self._seen != EPOCH.now:  # the graph may be another one
            self._always, self._seen = written_by(loss), EPOCH.now
        return self._always

    def _is_rank_0(self) -> bool:
        """Whether the loss can start from an array that holds the scale, as far as is known."""
        return not isinstance(self.loss, Variable) or self.loss.shape == ()

    def _update_without_looking(self) -> None:
        """A pass that finds out where the gradients are whether they are finite."""
        if self._there is None:
            self._there = LossScale(self.solver, self._scale, self.scaling_factor, self.N)
        if self.comm is not None:  # nothing here asks the others what their losses are
            self._backward(self._there.value)
            self._there.update(self.weight_decay or 0.0)
            return
        if STATE.interpreter.has_values:
            kept = self._before
            self._before = {
                id(nd): kept.get(id(nd)) or (nd, NdArray(nd.shape)) for nd in self._statistics()
            }
            undo = list(self._before.values())
            for nd, copy in undo:
                copy.copy_from(nd, False)
            self._backward(self._there.value)
        else:
            self._backward(self._there.value)
            written = self._written or []
            undo = list(zip([nd for nd, _ in written], values_before(written), strict=True))
        self._there.update(
            self.weight_decay or 0.0, loss=self._loss, undo=undo, most=self.max_tries
        )

    def _backward(self, scale: Any) -> None:
        self.solver.zero_grad()
        losses: list[Variable] = []
        self._written = []
        for _ in range(self.accum_grad):
            if self.data_feeder is not None:
                self.data_feeder()
            loss = self.loss if isinstance(self.loss, Variable) else self.loss()
            if isinstance(scale, NdArray) and loss.shape != ():
                raise ShapeError(
                    f"DynamicLossScalingUpdater.update: loss has the shape {loss.shape}, wanted () "
                    "on a device and inside nnl.compile; take nnl.functions.mean of it"
                )
            if loss is self.loss or not STATE.auto_forward:
                loss.forward(clear_no_need_grad=self.clear_buffer)
            losses.append(loss)
            known = {id(nd) for nd, _ in self._written}
            self._written += [x for x in self._written_by(loss) if id(x[0]) not in known]
            loss.backward(scale, clear_buffer=self.clear_buffer)
        if self.comm is None or not isinstance(scale, NdArray):
            self._keep(losses)
        if self.comm is not None and self.grads:
            if not isinstance(scale, NdArray) and self._is_lost():
                for g in self.grads:
                    g.fill(math.nan)  # all processes find it in the sum
            self.comm.all_reduce(self.grads, division=False, inplace=False)

    def _keep(self, losses: Sequence[Variable]) -> None:
        """Have the sum of the losses of an update in an array that stays the same."""
        values = [loss.data if STATE.interpreter.has_values else loss for loss in losses]
        total: Any = values[0]
        for value in values[1:]:
            total = OPS["add2"](total, value)
        if STATE.interpreter.has_values:
            if self._kept_loss.shape != total.shape:
                self._kept_loss = NdArray(total.shape)
            self._kept_loss.copy_from(total, False)
            total = self._kept_loss
        self._loss = total

    def _is_lost(self) -> bool:
        """Whether the loss, or something that the pass has written, is not finite."""
        arrays = [self._loss, *[nd for nd, _ in self._written or ()]]
        floats = [nd.read("host") for nd in arrays if nd.spec.is_float]
        return not all(np.isfinite(a).all() for a in floats)

    def _apply(self) -> None:
        self.solver.scale_grad(1.0 / self.scale)
        if self.weight_decay is not None:
            self.solver.weight_decay(self.weight_decay)
        self.solver.update()
        if self._counter > self.N:
            self._rescale(self.scaling_factor)
            self._counter = 0
        self._counter += 1

    def _rescale(self, factor: float) -> None:
        old = self.scale
        self.scale = min(max(old * factor, LOWEST), HIGHEST)
        logger.debug("loss scale %g -> %g", old, self._scale)


def written_by(loss: Variable) -> list[tuple[NdArray, int]]:
    """The arrays that the functions which a loss depends on write, and the number of the first."""
    found: dict[int, tuple[NdArray, int]] = {}
    for node in capture([loss.edge]):
        for i in node.op.written(node.attrs):
            v = node.inputs[i]
            if v is not None:
                found.setdefault(id(v.array), (v.array, node.seq))
    return list(found.values())


def values_before(written: Sequence[tuple[NdArray, int]]) -> list[NdArray]:
    """Record copies of arrays as if that had been done before a function writes one."""
    if not written:
        return []
    copies = OPS["values_now"](*[Variable.of_edge(Value.leaf(nd), nd) for nd, _ in written])
    copies[0].edge.node.seq = min(number for _, number in written) - 1
    return [v.data for v in copies]
