# SPDX-License-Identifier: Apache-2.0
"""Paths: the sequences of calls that steps have made, and how each of them runs.

A path that is new runs call by call, as dynamic mode does; one that comes again gets a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from nnl.coexec.plans.blocks import Blocks, Pieces
from nnl.coexec.plans.calls import NONE, Call, Values, run_now
from nnl.coexec.policy.payoff import runs_before_plan
from nnl.coexec.policy.running_ahead import Pace
from nnl.coexec.policy.watch import LEARN, Watch
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.bulk import BULK
from nnl.core.graph.node import Value
from nnl.core.ops.op import Op
from nnl.ext.library import TILED, HostPlan
from nnl.graph.lowering.buffer_owners import count_holders
from nnl.graph.plan.plan import Plan
from nnl.graph.program.program import SPACE, space_of

MOST_PLACES = 100_000  # some 100 MB
MOST_PLANS = 64
TRIES = 4  # how many ways a path may go on anywhere before it counts how often they come again
BEGINNINGS = 64  # the same of the root, where every piece of a step begins


class PathNode:
    """Where a call leads to, or several that always come together; or the root of all paths.

    Attributes:
        key: What tells it from others after the same place.
        location: Where the program was when it first came here.
        after: {key: the place that follows}.
        passes: {(number of an output, start gradient, whether it clears): backward pass from here}.
        runs: How often a path has ended here. misses: how often one went on as never before.
        alone: How many of these runs are to be without a plan; 0: not known yet.
        pieces: The path that ends here as blocks.
        goes_on: Whether the latest step whose path ended here went on with another one.
        of_variables: Whether it is a call of a function of Variables.
    """

    __slots__ = (
        "key", "calls", "location", "after", "passes", "runs", "visits", "misses", "alone", "plan",
        "pieces", "goes_on", "of_variables",
    )  # fmt: skip

    def __init__(self, key: Any = None, calls: tuple[Call, ...] = ()) -> None:
        self.key, self.calls = key, calls
        self.location: Any = None
        self.after: dict[Any, PathNode] = {}
        self.passes: dict[Any, Any] = {}
        self.runs = self.visits = self.misses = self.alone = 0
        self.plan: PathPlan | None = None
        self.pieces: Pieces | None = None
        self.goes_on = self.of_variables = False

    @property
    def name(self) -> str:
        """What messages call it."""
        if isinstance(self.key, str):
            return self.key
        name, n = self.calls[0].op.name, len(self.calls)
        return name if n == 1 else f"{n} x {name}"

    def is_predictable(self) -> bool:
        """Whether what is new here is likely to come again; asked when something new comes."""
        self.misses += 1
        tries = TRIES if self.calls else BEGINNINGS
        return self.misses <= tries or 2 * self.misses < self.visits


class Paths:
    """All paths that the steps of a program have taken.

    Attributes:
        root: Where they begin.
        attrs: {(op, where the program was, how often it had been there in the step): the attributes
            it was called with, None once they varied}.
        size: How many places there are; of too many, all are forgotten at the next step.
        ends: How many paths have run.
        planned: Places whose paths have plans, the latest used last.
        plans: How many were made.
        pace: Whether they run ahead.
        reproducible: Whether how a path runs depends on nothing that has been before.
        blocks: What paths without a plan run by.
        watch: What says whether steps repeat themselves.
    """

    __slots__ = (
        "root", "size", "attrs", "planned", "plans", "pace", "reproducible", "blocks", "ends",
        "watch",
    )  # fmt: skip

    def __init__(self, pace: Pace, reproducible: bool = False) -> None:
        self.pace, self.plans, self.ends, self.reproducible = pace, 0, 0, reproducible
        self.watch = Watch()
        self._forget()

    def _forget(self) -> None:
        self.root, self.size = PathNode(), 0
        self.attrs: dict[Any, Any] = {}
        self.planned: dict[PathNode, None] = {}
        self.blocks = Blocks()

    def follows(self) -> bool:
        """Whether the next step is to be put off."""
        return self.reproducible or self.watch.follows()

    def may_grow(self, at: PathNode) -> bool:
        """Whether what a step does for the first time after a place is likely to come again."""
        return self.reproducible or (self.watch.counts.came_often() and at.is_predictable())

    def begin(self) -> PathNode:
        """Where a step begins, or goes on after some of it has run."""
        if self.size > MOST_PLACES:
            self._forget()
        self.root.visits += 1
        return self.root

    def add(
        self, before: PathNode, key: Any, calls: tuple[Call, ...], location: Any = None
    ) -> PathNode:
        """The place that calls lead to for the first time."""
        self.size += 1
        self.watch.spend(LEARN * len(calls))
        place = before.after[key] = PathNode(key, calls)
        place.location = location
        BULK.keep(place, key, calls, before.after, *calls)
        return place

    def varies(self, op: Op, attrs: Any, location: int, times: int) -> bool:
        """Whether a function has been called from here with other attributes in other steps."""
        if self.reproducible:
            return True  # it might be
        key = op, location, times
        if self.attrs.setdefault(key, attrs) is attrs:
            return False
        self.attrs[key] = None
        return True

    def end(self, place: PathNode, wanted: set[int], ends: bool) -> PathNode:
        """Where a path ends of which these results are wanted: the place that has its plan.

        One plan for all that are wanted at some time is less to make, but rounds otherwise when
        more of them are.

        Args:
            ends: Whether the step ends there, too.
        """
        if self.reproducible:
            key = frozenset(wanted), ends
            place = place.after.get(key) or self.add(place, key, ())
        place.goes_on = not ends
        return place

    def run(
        self,
        end: PathNode,
        path: Sequence[PathNode],
        given: Sequence[NdArray],
        wanted: set[int],
        values: Values,
    ) -> None:
        """Run the calls of a path.

        Args:
            end: Where it ends.
            given: The arrays of the numbers from -2 down.
            wanted: Numbers of the results that are asked for.
            values: Gets these; of a path that fails what was computed before, if it writes nothing.
        """
        end.runs += 1
        self.ends += end.runs == 1
        plan = self._plan(end, path, given, wanted) if self._pays(end, path, given) else None
        if plan is None:
            before, pieces = self.blocks.by_plan, self._pieces(end, path, given)
            self.blocks.run(pieces, given, wanted, values)
            self.watch.ran(pieces.work, (self.blocks.by_plan - before) / len(pieces.calls))
            return
        if end.pieces is not None:
            self.watch.ran(end.pieces.work, 1.0)
        try:
            plan.run(wanted, values)
        except Exception:
            run_what_goes(path, given, wanted, values)
            raise

    def _pays(self, end: PathNode, path: Sequence[PathNode], given: Sequence[NdArray]) -> bool:
        """Whether a path that has come so often is to run by a plan."""
        if end.runs == 1 or end.plan is not None or self.reproducible:
            return end.runs > 1 or self.reproducible
        if not end.alone:
            work = [(c.attrs, c.bound) for c in _calls(path)]
            end.alone = runs_before_plan(work, self._pieces(end, path, given).shares)
        return end.runs > end.alone

    def _pieces(self, end: PathNode, path: Sequence[PathNode], given: Sequence[NdArray]) -> Pieces:
        """A path as blocks, again where these have fallen apart meanwhile."""
        pieces = end.pieces
        if pieces is None or not self.blocks.are_still(pieces):
            pieces = end.pieces = self.blocks.split(_calls(path), given)
        return pieces

    def ready(
        self, end: PathNode, path: Sequence[PathNode], given: Sequence[NdArray], wanted: set[int]
    ) -> PathPlan | None:
        """The plan of a path, ready to be started; None where it has to run at once."""
        plan = end.plan
        if plan is None or not plan.runs_by_itself or not wanted <= plan.wanted:
            return None
        plan = self._plan(end, path, given, wanted)
        end.runs += plan is not None
        return plan

    def _plan(
        self, end: PathNode, path: Sequence[PathNode], given: Sequence[NdArray], wanted: set[int]
    ) -> PathPlan | None:
        """The plan of a path, ready to run; None where there is no memory for it."""
        plan = end.plan
        try:
            if plan is None or not wanted <= plan.wanted:
                more = wanted if plan is None else wanted | plan.wanted
                plan = end.plan = PathPlan(_calls(path), given, more, not end.goes_on)
                self.plans += 1
            plan.take(given)
        except MemoryError:
            while self.planned:
                self._drop(next(iter(self.planned)))
            end.plan = None
            return None
        self.planned.pop(end, None)
        self.planned[end] = None
        if len(self.planned) > MOST_PLANS:
            self._drop(next(iter(self.planned)))
        return plan

    def _drop(self, place: PathNode) -> None:
        del self.planned[place]
        place.plan, place.runs = None, 0


def _calls(path: Sequence[PathNode]) -> list[Call]:
    return [c for p in path for c in p.calls]


def run_what_goes(
    path: Sequence[PathNode], given: Sequence[NdArray], wanted: set[int], values: Values
) -> None:
    """After an error of a plan: what comes before the call that fails, if nothing is written."""
    if not any([n < NONE for c in _calls(path) for n in c.written]):
        run_now(_calls(path), given, wanted, values)


def runs_by_itself(plan: Plan) -> bool:
    """Whether the native library runs all of a plan, in one part, without calling back."""
    ours = plan.native is not None and plan.space == SPACE and not plan.second
    return ours and all(s.kernel is not None for s in plan.native_steps)


class PathPlan:
    """The plan of a path, whose given arrays may be others at every run.

    Args:
        lazy: Whether results may stay in the order that kernels like, as hardly anybody reads them.

    Attributes:
        wanted: Numbers of the results that it keeps.
        plain: {number: slot} of those whose buffer arrays can have as it is.
        owned: Slots of what it computes and gives away. alone: References to their buffers while
            nobody has them.
        runs_by_itself: Whether it can run while Python does something else.
    """

    def __init__(
        self, calls: Sequence[Call], given: Sequence[NdArray], wanted: set[int], lazy: bool
    ) -> None:
        self.wanted = wanted
        self.holes: list[NdArray] = []
        last = min([NONE, *[n for c in calls for n in c.numbers]])
        for nd in given[: -1 - last]:  # arrays of a call that was done at once may follow
            hole = NdArray.unwritten(nd.spec)
            hole.become(nd)
            self.holes.append(hole)
        leaves = [Value.leaf(hole) for hole in self.holes]
        made: list[Value] = []
        alias: list[int] = []  # the number of the array whose memory each is
        nodes = []
        for call in calls:
            node = call.node([_edge(n, made, leaves) for n in call.numbers])
            nodes.append(node)
            for i, nd in enumerate(node.outs or ()):
                made.append(Value.of(node, i, nd.spec, False, nd))
                seen = call.numbers[0] if call.bound.view else len(alias)
                alias.append(alias[seen] if 0 <= seen < len(alias) else seen)
        kept = {made[n].key for n in wanted}
        self.plan = plan = Plan(nodes, kept, lazy=kept if lazy else frozenset())
        self.runs_by_itself = runs_by_itself(plan)
        plan.loose |= {slot for slot, _ in plan.binding.given}  # so that no call holds a buffer
        self.slots = {n: plan.slot_of[made[n].key] for n in wanted}
        roots = {n: plan.root.get(s, s) for n, s in self.slots.items()}
        computed = {o for step in plan.steps for o in step.outs}
        owner: dict[int, int] = {}  # {root: the array, as in alias, that has its memory}
        self.copied = set()  # of what dynamic mode has memory of its own for, and the plan has not
        for n in sorted(wanted):
            root = roots[n]
            fixed = root not in computed and alias[n] >= 0
            if fixed or owner.setdefault(root, alias[n]) != alias[n]:
                self.copied.add(n)
        plain = [(n, s) for n, s in self.slots.items() if n not in self.copied]
        orders = [space_of(plan.space, plan.program.slots[s].order) for _, s in plain]
        self.plain = {n: s for (n, s), o in zip(plain, orders, strict=True) if o == plan.space}
        slots = {*self.slots.values(), *roots.values()}
        self.owned = [s for s in sorted(slots) if plan.root.get(s, s) in computed]
        self._references = BULK.references  # always the same one: they count differently
        self.alone = self._references(plan.slots, self.owned)
        count_holders([id(plan.slots[s]) for s in self.owned], 1)
        self._memory: dict[int, tuple[Any, ...] | None] = {}

    def __del__(self) -> None:
        if hasattr(self, "alone"):
            count_holders([id(self.plan.slots[s]) for s in self.owned], -1)

    def take(self, given: Sequence[NdArray]) -> None:
        """Get ready to run on these arrays."""
        plan = self.plan
        BULK.become(self.holes, given)
        now = self._references(plan.slots, self.owned)
        if now == self.alone:
            return
        pairs = zip(self.owned, now, self.alone, strict=True)
        held = {plan.root.get(s, s) for s, n, alone in pairs if n > alone}
        slots = [s for s in self.owned if plan.root.get(s, s) in held]
        count_holders([id(plan.slots[s]) for s in slots], -1)
        usual = []
        for root in held:
            what = self._memory_of(root)
            if what is None:
                plan.renew(root)
            else:
                usual.append(what)
        if usual:
            cast(HostPlan, plan.native).renew(plan.slots, usual)
        count_holders([id(plan.slots[s]) for s in slots], 1)

    def _memory_of(self, root: int) -> tuple[Any, ...] | None:
        """What HostPlan.renew is told of a slot with plain memory; None for any other."""
        if root not in self._memory:
            plan, slot = self.plan, self.plan.program.slots[root]
            self._memory[root] = None
            host = plan.native is not None and plan.space == SPACE
            if host and slot.order != TILED and root not in plan.program.results:
                views = plan.views.get(root, ())
                shapes = tuple([(v, plan.program.slots[v].spec.shape) for v in views])
                self._memory[root] = root, slot.spec.shape, slot.spec.dtype, shapes
        return self._memory[root]

    def run(self, wanted: set[int], values: Values) -> None:
        """Run, and add what is wanted to the values."""
        self.plan.run()
        self.add(wanted, values)

    def add(self, wanted: set[int], values: Values) -> None:
        """Add what is wanted to the values, after a run."""
        buffers, space = self.plan.slots, self.plan.space
        for n in wanted:
            slot = self.plain.get(n)
            if slot is not None:
                values[n] = space, buffers[slot]
                continue
            where, buf = self.plan.published(self.slots[n])
            values[n] = where, buf.copy() if n in self.copied else buf


def _edge(number: int, made: Sequence[Value], leaves: Sequence[Value]) -> Value | None:
    if number == NONE:
        return None
    return made[number] if number >= 0 else leaves[-2 - number]
