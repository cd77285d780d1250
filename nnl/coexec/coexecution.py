# SPDX-License-Identifier: Apache-2.0
"""nnl.coexecute and nnl.coexecution: define-by-run steps at the speed of compiled ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from sys import _getframe
from threading import Lock, get_ident
from time import perf_counter
from types import FrameType
from typing import Any

from nnl.coexec.deferring.deferred_step import DeferredStep
from nnl.coexec.deferring.running import Running
from nnl.coexec.deferring.speculation import Speculating, arrays_of
from nnl.coexec.deferring.uninterrupted import whole
from nnl.coexec.plans.expectations import Expectations
from nnl.coexec.plans.paths import Paths
from nnl.coexec.policy.running_ahead import Pace
from nnl.coexec.tracing.report import Report
from nnl.core.arrays.array import NdArray
from nnl.core.interpreters.deferring import Deferring
from nnl.core.interpreters.interpreter import EAGER, Eager
from nnl.core.settings.context import STATE
from nnl.graph.recording.compile import compile


class coexecution:
    """A with block around each step of a define-by-run program, which then runs as plans.

    In the block nothing that `nnl.auto_forward` would compute is computed at once: functions give
    Variables with shapes and types, and the values follow when something reads them (`.d`, `.g`,
    `float(...)`, DLPack) or writes over what they depend on, at the latest at the end of the block.
    Paths of calls that have been seen before run as plans, with fused functions, chosen layouts and
    planned memory; others run call by call, as without the block. So the program computes the same,
    whatever it does in between: branches, loops, numpy, third-party code, attributes, exceptions.

    Use one object for all steps of a program: it remembers the paths.

    Args:
        shadow: N: in every N-th step what runs as a plan also runs call by call, on copies of what
            it writes, and is compared: bit by bit with numpy, up to rounding with fused functions.
            A difference is a warning, and one of `report().differences`. 0: never.
        ahead: 1: what a step has left to do at its end runs while Python is in the next one, or
            until somebody asks for it. 0: a step is done when its block ends. None: the faster of
            the two, found out by trying.
        reproducible: The bits that a step computes depend on what it is given alone, and not on the
            steps before it: a program that goes on from a checkpoint computes what it would have
            without the interruption. Every path has a plan when it comes for the first time, and
            one for every set of its results that is asked for.
        speculate: Whether a step begins to run before all of its calls are made, as the path that
            it was in the steps before, while Python still goes through it. What it writes is copied
            first, and written back if Python takes another way. For steps that are always the same
            and have much Python in the middle.
    Raises:
        ValueError: A step begins inside of a step, or while another thread runs one of the same.

    Example:
        >>> import nnl as nn
        >>> steps = nn.coexecution()
        >>> x = nn.Variable.from_numpy_array([1.0, 2.0])
        >>> with nn.auto_forward(), steps:
        ...     y = x * 2
        >>> y.d
        array([2., 4.], dtype=float32)
    """

    def __init__(
        self,
        shadow: int = 0,
        ahead: int | None = None,
        reproducible: bool = False,
        speculate: bool = False,
    ) -> None:
        if type(shadow) is not int or shadow < 0:
            raise ValueError(f"coexecution: shadow is {shadow!r}, wanted an int >= 0")
        if ahead not in (0, 1, None):
            raise ValueError(f"coexecution: ahead is {ahead!r}, wanted 0, 1 or None")
        if type(speculate) is not bool:
            raise TypeError(f"coexecution: speculate is {speculate!r}, wanted True or False")
        if speculate and ahead:
            raise ValueError(
                "coexecution: speculate=True and ahead=1: one thread runs either the present step "
                "or the one before, choose one"
            )
        self._shadow, self._running = shadow, Lock()
        self._paths = Paths(Pace(0 if speculate else ahead), reproducible)
        self._report = Report(self._paths)
        self._expectations = Expectations() if speculate else None
        self._offered: Sequence[NdArray] = ()
        self._step = Deferring()
        self._deferred: DeferredStep | None = None

    def __enter__(self) -> coexecution:
        frame = _getframe(1)
        present = _present()
        if present is not None and not present.is_over():
            raise ValueError(
                "coexecution: a step begins inside of a step: wrap only the outer one "
                "(documentation: coexecution#rules)"
            )
        whole(self._begin, frame)
        return self

    def _begin(self, frame: FrameType) -> None:
        left = _present()
        if left is not None:
            left.end()
        if not self._running.acquire(blocking=False):
            raise ValueError(
                "coexecution: a step of this program is running already: give each thread an "
                "nnl.coexecution of its own (documentation: coexecution#rules)"
            )
        self._start = perf_counter()
        shadow = self._shadow > 0 and self._report.steps % self._shadow == 0
        watch = self._paths.watch
        watch.begin(frame, self._end)
        now = STATE.interpreter
        if type(now.now) is Eager:
            STATE.interpreter = self._step.switched(now.computes)
        if not (self._paths.follows() or shadow):
            watch.active, self._step.watch = True, watch
            return
        what = self._step, self._paths, self._report, frame, self._end
        if self._expectations is None or shadow:
            self._deferred = DeferredStep(*what, shadow)
        else:
            self._deferred = Speculating(*what, self._expectations, self._offered)
            self._offered = ()
        self._step.deferred = self._deferred

    def __exit__(self, *error: Any) -> None:
        whole(self._end)

    def _end(self) -> None:
        put_off = self._step.deferred is not None
        self._step.deferred = self._step.watch = None
        deferred, self._deferred = self._deferred, None  # which knows the frame of the caller
        if STATE.interpreter.now is self._step:
            STATE.interpreter = EAGER.switched(STATE.interpreter.computes)
        try:
            if deferred is None:
                self._end_unfollowed()
            else:
                deferred.finish(True)
        finally:
            self._paths.watch.end_step(put_off)
            self._report.end_step(self._start)
            self._running.release()

    def _end_unfollowed(self) -> None:
        """A step is over that computed all at once."""
        self._report.left += 1
        self._paths.pace.interrupted()
        now = Running.now
        if now is not None and now.thread == get_ident():
            now.finish()

    def report(self) -> Report:
        """What ran as plans, what did not, and why."""
        return self._report


def _present() -> Any:
    """What knows of the step that this thread is in."""
    step = STATE.interpreter.now
    return step.deferred or step.watch if isinstance(step, Deferring) else None


def coexecute(
    f: Callable[..., Any],
    shadow: int = 0,
    ahead: int | None = None,
    reproducible: bool = False,
    speculate: bool = False,
) -> Callable[..., Any]:
    """Run each call of a function as one step of nnl.coexecution.

    Args:
        f: A step of a define-by-run program. Nothing in it has to change.
        shadow, ahead, reproducible, speculate: See nnl.coexecution.
    Returns:
        A function with the same arguments and results, with `report()`, and with `freeze(*args)`:
        for a step that has shown one path, in which nothing reads values, that path without its
        Python. It runs one step with these arguments, and returns what nnl.compile does, for
        arguments of the same shapes.

    Example:
        >>> import nnl as nn
        >>> double = nn.coexecute(lambda x: x * 2)
        >>> with nn.auto_forward():
        ...     double(nn.Variable.from_numpy_array([1.0, 2.0])).d
        array([2., 4.], dtype=float32)
    """
    if not callable(f):
        raise TypeError(f"coexecute: f is {type(f).__name__}, wanted a function")
    steps = coexecution(shadow, ahead, reproducible, speculate)

    @wraps(f)
    def step(*args: Any, **kw: Any) -> Any:
        if speculate:
            steps._offered = arrays_of(args, kw)
        with steps:
            return f(*args, **kw)

    def freeze(*args: Any, **kw: Any) -> Callable[..., Any]:
        report = steps.report()
        if not report.steps:
            raise ValueError("freeze: no step has run, so no path is known: run some first")
        if report.traces > 1 or report.segments > report.steps:
            raise ValueError(
                f"freeze: {getattr(f, '__name__', 'step')} is not one path in one segment, as far "
                f"as was seen: {report}"
            )
        frozen = compile(f)
        frozen(*args, **kw)
        return frozen

    step.report = steps.report  # type: ignore[attr-defined]
    step.freeze = freeze  # type: ignore[attr-defined]
    return step
