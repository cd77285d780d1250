# SPDX-License-Identifier: Apache-2.0
"""Blocks: runs of calls that always come together, each with one plan wherever paths have it.

A path without a plan of its own runs as its blocks one after the other, so another number of rounds
or another combination of branches, none of which came before, runs by plans that are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nnl.coexec.plans.block_plan import BlockPlan, plan_of
from nnl.coexec.plans.calls import NONE, Call, Values, buffers
from nnl.coexec.policy.payoff import BEYOND, SHARE, runs_before_plan, seconds
from nnl.core.arguments.origin import line_of
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.bulk import BULK
from nnl.core.arrays.spec import Spec
from nnl.core.settings.context import SPACES
from nnl.graph.plan.plan import Plan
from nnl.graph.printing.profile import PROFILES
from nnl.graph.program.program import SPACE

MOST = 256  # plans; of too many, all are forgotten
NEVER = 1 << 60
BEGIN, END = -1, -2  # what comes before the first call of a path, and after the last one

Key = tuple[Any, ...]


class Block:
    """Calls that always come together, each known by where it is made and by its numbers.

    Attributes:
        calls: The first ones that were met.
        numbers: Of their inputs: results of the block count up from 0, what it reads down from -2.
        specs: Of what it reads.
        written: Positions of what it writes, among what it reads.
        runs: How often it came. alone: How many of these runs are to be without a plan.
        plan: What runs it; None: its calls run one by one.
    """

    __slots__ = ("calls", "numbers", "specs", "written", "runs", "alone", "plan")

    def __init__(
        self, calls: Sequence[Call], numbers: list[tuple[int, ...]], specs: list[Spec]
    ) -> None:
        self.calls, self.numbers, self.specs = calls, numbers, specs
        self.written = {
            -2 - n[i] for c, n in zip(calls, numbers, strict=True) for i in c.bound.writes
        }
        self.runs = 0
        work = [(c.attrs, c.bound) for c in calls]
        self.alone = runs_before_plan(work) if len(calls) > 1 else NEVER
        self.plan: BlockPlan | None = None


ONE = Block([], [], [])  # what stands for a single call, which has no plan


class Piece:
    """A block in a path.

    Attributes:
        begin, end: Its calls are these of the path.
        numbers: What it reads, by the numbers of the path.
        first: Number of its first result.
    """

    __slots__ = ("block", "begin", "end", "numbers", "first")

    def __init__(
        self, block: Block, begin: int, end: int, numbers: tuple[int, ...], first: int
    ) -> None:
        self.block, self.begin, self.end = block, begin, end
        self.numbers, self.first = numbers, first


class Pieces:
    """A path as blocks.

    Attributes:
        version: Of the blocks when it was last seen that these are its pieces.
        nodes: Of its calls. cuts: Where it is cut into chains.
        bounds, numbers: Of its calls. firsts: Numbers of their first results, and of one after all.
        last: {number: position of the last piece that reads it}, as a list.
        work: Seconds that the calls take by themselves, about.
        at: The call, or the plan, that an error has come from and that it does not name yet.
    """

    __slots__ = (
        "version", "nodes", "cuts", "calls", "pieces", "bounds", "numbers", "firsts", "last", "at",
        "work",
    )  # fmt: skip

    def __init__(
        self,
        version: int,
        nodes: list[int],
        cuts: list[int],
        calls: Sequence[Call],
        pieces: list[Piece],
        firsts: list[int],
    ) -> None:
        self.version, self.nodes, self.cuts = version, nodes, cuts
        self.calls, self.pieces, self.firsts = calls, pieces, firsts
        self.bounds = [c.bound for c in calls]
        self.numbers = [c.numbers for c in calls]
        self.last = [-1] * firsts[-1]
        self.work = sum([seconds(c.attrs, c.bound) for c in calls])
        self.at: Call | Plan | None = None
        for at, piece in enumerate(pieces):
            for n in piece.numbers:
                if n >= 0:
                    self.last[n] = at

    @property
    def shares(self) -> list[float]:
        """What a plan of the whole path saves of the time of each call, about."""
        several = [p.end - p.begin > 1 for p in self.pieces for _ in range(p.begin, p.end)]
        return [BEYOND if s else SHARE for s in several]


class Blocks:
    """The blocks of all paths.

    Every call is a node of a graph, the same node where the same line makes it with the same
    shapes, and an edge leads to what has followed it. A block is a chain of this graph: each call
    but the last has one successor, which has one predecessor. So it is what Terra's Algorithm 1
    finds in the graph whose loops are folded: the body of a loop, a branch.

    Attributes:
        version: Grows when a block falls apart.
        planned: Those that have plans. made: How many plans were made.
        by_plan: How many calls ran in plans.
    """

    def __init__(self) -> None:
        self.version = self.made = self.by_plan = 0
        self._nodes: dict[Key, int] = {}
        self._after: dict[int, set[int]] = {}
        self._before: dict[int, set[int]] = {}
        self._blocks: dict[Key, Block] = {}
        self.planned: list[Block] = []

    # ---- finding blocks ----

    def split(self, calls: Sequence[Call], given: Sequence[NdArray]) -> Pieces:
        """A path as blocks; what it says of successions is noted first."""
        nodes = [self._nodes.setdefault((c.site, c.bound), len(self._nodes)) for c in calls]
        for a, b in zip([BEGIN, *nodes], [*nodes, END], strict=True):
            self._follows(a, b)
        firsts = [0]
        for c in calls:
            firsts.append(firsts[-1] + len(c.bound.out_specs))
        cuts = self._cuts(nodes)
        specs: list[Spec] = []
        roots: list[int] = []  # by number: the array whose memory it is
        if len(cuts) < len(nodes) - 1:
            specs = [s for c in calls for s in c.bound.out_specs]
            roots = _roots(calls)
        pieces: list[Piece] = []
        for begin, end in zip([0, *cuts], [*cuts, len(nodes)], strict=True):
            if end - begin == 1:
                pieces.append(Piece(ONE, begin, end, calls[begin].numbers, firsts[begin]))
            else:
                pieces += self._pieces(calls, nodes, firsts, begin, end, specs, given, roots)
        BULK.keep(*pieces)
        return Pieces(self.version, nodes, cuts, calls, pieces, firsts)

    def are_still(self, pieces: Pieces) -> bool:
        """Whether a path would be split into the same pieces as before."""
        if pieces.version != self.version and self._cuts(pieces.nodes) == pieces.cuts:
            pieces.version = self.version
        return pieces.version == self.version

    def _cuts(self, nodes: list[int]) -> list[int]:
        return [i for i in range(1, len(nodes)) if not self._in_chain(nodes[i - 1], nodes[i])]

    def _follows(self, a: int, b: int) -> None:
        """Note that call b has come after call a."""
        known = self._after.get(a)
        if known is not None and b in known:
            return
        after, before = self._after.setdefault(a, set()), self._before.setdefault(b, set())
        after.add(b)
        before.add(a)
        self.version += len(after) == 2 or len(before) == 2

    def _in_chain(self, a: int, b: int) -> bool:
        return len(self._after[a]) == 1 and len(self._before[b]) == 1

    def _pieces(
        self,
        calls: Sequence[Call],
        nodes: list[int],
        firsts: list[int],
        begin: int,
        end: int,
        specs: list[Spec],
        given: Sequence[NdArray],
        roots: list[int],
    ) -> Iterable[Piece]:
        """The block of these calls; where it writes and two inputs are one memory, several."""
        first = firsts[begin]
        outside: dict[int, int] = {}  # {number: the one that it has in the block}

        def inside(n: int) -> int:
            if n == NONE or n >= first:
                return n if n == NONE else n - first
            return outside.setdefault(n, -2 - len(outside))

        numbers = [tuple([inside(n) for n in c.numbers]) for c in calls[begin:end]]
        memory = {roots[n] if n >= 0 else n for n in outside}
        if len(memory) < len(outside) and any([c.bound.writes for c in calls[begin:end]]):
            for i in range(begin, end):
                yield Piece(ONE, i, i + 1, calls[i].numbers, firsts[i])
            return
        key = tuple(nodes[begin:end]), tuple(numbers)
        block = self._blocks.get(key)
        if block is None:
            read = [specs[n] if n >= 0 else given[-2 - n].spec for n in outside]
            block = self._blocks[key] = Block(calls[begin:end], numbers, read)
        yield Piece(block, begin, end, tuple(outside), first)

    def lines(self) -> Iterator[str]:
        """The blocks that have plans, for people."""
        for block in self.planned:
            names = ", ".join([f"{c.op.name} {line_of(c.origin)}".strip() for c in block.calls])
            yield f"a plan for the block {names}: ran {block.runs} times"

    # ---- running ----

    def run(
        self, pieces: Pieces, given: Sequence[NdArray], wanted: set[int], values: Values
    ) -> None:
        """Run a path by the plans of its blocks; calls of blocks without one, one by one.

        Args:
            given: The arrays of the numbers from -2 down.
            wanted: Numbers of the results that are asked for.
            values: Gets these; of a path that fails those that came before.
        """
        lib = SPACES[SPACE].library()
        run = run_pieces if lib is None or PROFILES else lib.run_pieces
        try:
            self.by_plan += run(self, pieces, given, wanted, values)
        except BaseException as e:
            at, pieces.at = pieces.at, None
            if isinstance(at, Plan):
                at.name(e, at.native_size)
            elif at is not None:
                at.tell(e)
            raise

    def plan(self, block: Block, wanted: Iterable[int]) -> Any:
        """Give a block a plan that keeps these results, besides what its plan keeps already.

        Returns:
            None where its calls are to run one by one, always.
        """
        before = block.plan
        keeps = sorted({*wanted, *(() if before is None else before.keeps)})
        if before is None and len(self.planned) >= MOST:
            for b in self.planned:
                b.plan, b.runs = None, 0
            self.planned.clear()
        try:
            block.plan = plan_of(block, keeps)
        except MemoryError:
            block.plan = None
        if block.plan is None:
            block.alone = NEVER
        else:
            self.made += 1
            if before is None:
                self.planned.append(block)
        return block.plan


def _roots(calls: Sequence[Call]) -> list[int]:
    """For each array that calls make, the number of the one whose memory it is."""
    roots: list[int] = []
    for c in calls:
        shared = c.numbers[0] if c.bound.view else None
        roots += [
            len(roots) + i if shared is None else roots[shared] if shared >= 0 else shared
            for i in range(len(c.bound.out_specs))
        ]
    return roots


def run_pieces(
    blocks: Blocks, pieces: Pieces, given: Sequence[NdArray], wanted: set[int], values: Values
) -> int:
    """Do what `Blocks.run` does; how many calls ran in plans. A library does it faster."""
    made: dict[int, Any] = {}
    by_plan = 0
    for position, piece in enumerate(pieces.pieces):
        block, first, end = piece.block, piece.first, pieces.firsts[piece.end]
        needed = [n for n in range(first, end) if pieces.last[n] > position or n in wanted]
        block.runs += 1
        plan = block.plan
        inside = [n - first for n in needed]
        if block.runs > block.alone and (plan is None or not {*inside} <= {*plan.keeps}):
            plan = blocks.plan(block, inside)
        if plan is None or PROFILES:
            for i in range(piece.begin, piece.end):
                out = pieces.calls[i].compute(buffers(pieces.calls[i], made, given))
                for n, y in enumerate(out, pieces.firsts[i]):
                    made[n] = y
                    if n in wanted:
                        values[n] = SPACE, y
        else:
            by_plan += piece.end - piece.begin
            bufs = [
                made[n] if n >= 0
                else given[-2 - n].touch(SPACE) if i in block.written
                else given[-2 - n].read(SPACE)
                for i, n in enumerate(piece.numbers)
            ]  # fmt: skip
            made.update(zip([first + n for n in plan.keeps], plan(bufs), strict=True))
            values.update({n: (SPACE, made[n]) for n in needed if n in wanted})
        for n in {*range(first, end), *piece.numbers}:
            if n >= 0 and pieces.last[n] <= position:
                made.pop(n, None)
    return by_plan
