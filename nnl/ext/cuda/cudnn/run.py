# SPDX-License-Identifier: Apache-2.0
"""Plans of cuDNN for graphs, and the kernels that run them. Not yet run on a GPU."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnl.ext.cuda.cublas import Blas, Product, is_product
from nnl.ext.cuda.cudnn.cache import PlanCache
from nnl.ext.cuda.cudnn.lower import NotSupported, build, declines
from nnl.ext.cuda.cudnn.spec import ALIGNMENT, Array, Copy, Graph, Work, place
from nnl.ext.device.kernels.copies import Fill, copy
from nnl.ext.device.kernels.patterns import Space, pattern_of
from nnl.ext.device.registry import Kernel, Operand

logger = logging.getLogger("nnl")

__all__ = ["Engine", "Plan", "WorkKernel"]

MOST_WORKSPACE = 1 << 30  # bytes, of the plans that autotuning tries
RUNS = 10  # of each plan that is timed
ADDRESSES = 16  # bytes: what cuDNN's engines take addresses to be multiples of


class Plan:
    """What runs one graph.

    Attributes:
        graph: What it computes.
        operands: The arrays in memory that it needs the addresses of.
        workspace: Bytes.
    """

    def __init__(self, engine: Engine, graph: Graph, made: Any) -> None:
        self.engine, self.graph, self.made = engine, graph, made
        self.operands = graph.operands
        self.workspace = int(made.get_workspace_size())
        values = [(a.uid, a.value) for a in graph.arrays if a.value is not None]
        # cuDNN reads constants from the host's memory, at every run.
        self.values = np.array([v for _, v in values], np.float32)
        start, step = self.values.ctypes.data, self.values.itemsize
        self.constants = {uid: start + i * step for i, (uid, _) in enumerate(values)}

    def run(self, addresses: dict[int, int], workspace: int, stream: int) -> None:
        """Launch on a stream, given the addresses of all operands by uid."""
        handle = self.engine.handle()
        self.engine.cudnn.set_stream(handle=handle, stream=stream)
        self.made.execute({**addresses, **self.constants}, workspace, handle=handle)


class Engine:
    """cuDNN on one device: handles, plans, and plans on disk.

    Args:
        cudnn: NVIDIA's front end, the module.
        device: What a plan depends on besides the graph: name, compute capability.
        cache: Where plans are kept; None for nowhere.
        time: (plan, number of runs) -> seconds of one. With it every plan runs once before it is
            taken, so that one which cannot is found when a kernel is set up, not within a step.
        tune: Whether all plans of a graph are measured and the fastest taken.
        blas: What computes products of matrices with nothing after them; None for cuDNN.
        settings: Further arguments of the front end's graphs, in place of a handle.
    """

    def __init__(
        self,
        cudnn: Any,
        device: str,
        cache: PlanCache | None,
        time: Callable[[Any, int], float] | None = None,
        tune: bool = False,
        blas: Blas | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.cudnn, self.device, self.cache, self.time = cudnn, device, cache, time
        self.tune, self.settings = tune and time is not None, settings
        self.blas = blas
        self.plans: dict[Graph, Plan | Product | NotSupported] = {}
        self.lock = threading.RLock()
        self.told = False  # that building takes time
        self.local = threading.local()

    def handle(self) -> Any:
        """The handle of this thread."""
        if not hasattr(self.local, "handle"):
            self.local.handle = self.cudnn.create_handle()
        return self.local.handle

    def key(self, graph: Graph) -> str:
        """All that a plan depends on."""
        versions = f"cuDNN {self.cudnn.backend_version()}, front end {self.cudnn.__version__}"
        chosen = "the fastest" if self.tune else "the first"
        return f"{self.device}\n{versions}\n{chosen}\n{graph!r}"

    def plan(self, graph: Graph) -> Plan | Product:
        """The plan of a graph: made before, read from disk, or built now; cuBLAS's for a product.

        Raises:
            NotSupported: cuDNN has no engine for it.
        """
        with self.lock:
            found = self.plans.get(graph)
            if found is None:
                try:
                    found = self._product(graph) or self._loaded(graph) or self._built(graph)
                except NotSupported as e:
                    found = e
                self.plans[graph] = found
        if isinstance(found, NotSupported):
            raise found
        return found

    def _settings(self) -> dict[str, Any]:
        return {"handle": self.handle()} if self.settings is None else self.settings

    def _product(self, graph: Graph) -> Product | None:
        """cuBLAS's way to compute a product, unless cuDNN's was measured to be faster."""
        if self.blas is None or not is_product(graph):
            return None
        runs = RUNS if self.tune else 1
        try:
            product = Product(self.blas, graph)
            seconds = self._try(product, runs)
        except (NotSupported, RuntimeError) as e:
            logger.info("cuDNN: it computes a product, and not cuBLAS: %s", e)
            return None
        if self.tune:
            with contextlib.suppress(NotSupported):
                plan = self._loaded(graph) or self._built(graph)
                if self._try(plan, runs) < seconds:
                    return None
        return product

    def _loaded(self, graph: Graph) -> Plan | None:
        data = self.cache and self.cache.load(self.key(graph))
        if not data:
            return None
        try:
            made = self.cudnn.pygraph(**self._settings())
            made.deserialize(data)
            plan = Plan(self, graph, made)
            self._try(plan, 1)
            return plan
        except (*declines(self.cudnn), RuntimeError, ValueError) as e:
            logger.info("cuDNN: a plan on disk is not taken (%s), and made again", e)
            assert self.cache is not None
            self.cache.drop(self.key(graph))
            return None

    def _built(self, graph: Graph) -> Plan:
        if not self.told:
            where = f"and kept in {self.cache.path}" if self.cache else "and not kept"
            logger.info("cuDNN: plans are built, which takes up to seconds for each, %s", where)
            self.told = True
        made = build(self.cudnn, graph, **self._settings())
        plan = Plan(self, graph, made) if self.time is None else self._choose(graph, made)
        if self.cache is not None:
            try:
                self.cache.store(self.key(graph), bytes(made.serialize(as_bytes=True)))
            except (RuntimeError, NotImplementedError) as e:
                logger.info("cuDNN: a plan cannot be written down: %s", e)
        return plan

    def _try(self, plan: Plan | Product, runs: int) -> float:
        """Seconds of a run; 0 where plans are not tried, or memory is too short for it."""
        try:
            return self.time(plan, runs) if self.time is not None else 0.0
        except MemoryError as e:
            logger.debug("cuDNN: a plan is not tried: %s", e)
            return 0.0

    def _choose(self, graph: Graph, made: Any) -> Plan:
        """The first plan that runs, or the fastest of all; it is left selected.

        Raises:
            NotSupported: None runs.
        """
        best: tuple[float, int] | None = None
        passed, why = (*declines(self.cudnn), RuntimeError, ValueError), "it has none"
        if not self.tune:
            try:
                plan = Plan(self, graph, made)
                self._try(plan, 1)
                return plan
            except passed as e:
                logger.info("cuDNN: the first plan of a graph does not run: %s", e)
        for i in range(made.get_execution_plan_count()):
            try:
                made.build_plan_at_index(i)
                if made.get_workspace_size() > MOST_WORKSPACE:
                    continue
                seconds = self._try(Plan(self, graph, made), RUNS if self.tune else 1)
            except passed as e:
                logger.debug("cuDNN: plan %d is passed over: %s", i, e)
                why = str(e)
                continue
            if best is None or seconds < best[0]:
                best = seconds, i
            if not self.tune:
                break
        if best is None:
            raise NotSupported(f"no plan runs: {why}")
        made.build_plan_at_index(best[1])
        return Plan(self, graph, made)

    def kernel(self, ways: Sequence[Work]) -> Kernel:
        """The first of some ways to compute an op for which there are engines.

        Raises:
            NotSupported: There are none for any.
        """
        why = []
        for work in ways:
            try:
                return WorkKernel(self, work)
            except NotSupported as e:
                why.append(str(e).split("\n")[0])
        raise NotSupported("; ".join(dict.fromkeys(why)))


class WorkKernel(Kernel):
    """All steps of a Work, one after the other on one stream. No output may be an input's memory.

    Raises:
        NotSupported: There is no engine for one of its graphs.
    """

    def __init__(self, engine: Engine, work: Work) -> None:
        work.validate()
        self.work = work
        self.offsets, self.own = work.scratch()
        self.steps = [engine.plan(s) if isinstance(s, Graph) else CopyStep(s) for s in work.steps]
        plans = [s.workspace for s in self.steps if not isinstance(s, CopyStep)]
        used = self.own + max(plans, default=0)
        self.workspace = used + ALIGNMENT if used else 0  # it may begin anywhere

    def run(
        self, ins: Sequence[int | None], outs: Sequence[int], workspace: int, stream: int
    ) -> None:
        start = -(-workspace // ALIGNMENT) * ALIGNMENT

        def address(uid: int) -> int:
            kind, i = place(uid)
            if kind == "scratch":
                return start + self.offsets[i]
            found = outs[i] if kind == "out" else ins[i] or 0
            if found % ADDRESSES:
                what = "output" if kind == "out" else "input"
                raise ValueError(
                    f"cuDNN: {what} {i} lies at the address {found}, "
                    f"wanted a multiple of {ADDRESSES}"
                )
            return found

        for step in self.steps:
            addresses = {a.uid: address(a.uid) + a.start for a in step.operands}
            step.run(addresses, start + self.own, stream)


class CopyStep:
    """A Copy by kernels of our own: zeros first where the target is larger."""

    def __init__(self, step: Copy) -> None:
        self.source, self.target = step.source.uid, step.target.uid
        self.operands = (step.source, step.target)
        # in the order of the target's memory, so that it is written in runs
        axes = sorted(range(len(step.both)), key=lambda a: -step.target.stride[a])
        space = Space.of([step.both[a] for a in axes])
        source, target = (
            pattern_of(space, [x.stride[a] for a in axes]) for x in (step.source, step.target)
        )
        x, y = _flat(step.source), _flat(step.target)
        self.fill = None if step.both == step.target.dim else Fill(y, 0.0)
        made = copy(x, y, space.size, source, target)
        if made is None:
            raise NotSupported(f"a copy of {space.size} elements")
        self.copy = made

    def run(self, addresses: dict[int, int], workspace: int, stream: int) -> None:
        ins, outs = [addresses[self.source]], [addresses[self.target]]
        if self.fill is not None:
            self.fill.run([], outs, workspace, stream)
        self.copy.run(ins, outs, workspace, stream)


def _flat(a: Array) -> Operand:
    """The memory of an array as an operand of one axis."""
    if a.dtype == "bfloat16":
        import ml_dtypes

        return Operand((a.extent,), np.dtype(ml_dtypes.bfloat16))
    return Operand((a.extent,), np.dtype(a.dtype))
