# SPDX-License-Identifier: Apache-2.0
"""nnl.compile: record a Python function once, or a whole training step, and run it as one plan."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial, wraps
from threading import RLock
from typing import Any

import numpy as np

from nnl.core.array import NdArray
from nnl.core.context import EPOCH, STATE, using
from nnl.core.convert import exact
from nnl.core.graph import Value, capture
from nnl.core.origin import at
from nnl.core.recent import Plans
from nnl.core.tracer import tracing
from nnl.core.variable import Variable
from nnl.graph.binding import Binding
from nnl.graph.infer_again import infer_again
from nnl.graph.lowering import lower
from nnl.graph.plan import Plan
from nnl.graph.program import Program
from nnl.graph.saving import Saver, unique
from nnl.graph.session import fingerprint
from nnl.graph.trace import Trace

# "save": writes a network to a file, by its extension; the package above that knows formats puts
# it here.
NETWORK_FILES: dict[str, Callable[..., None]] = {}


class Compiled:
    """One recorded call: its plan, the leaves for the arguments, and where results go."""

    def __init__(self, f: Callable[..., Any], args: tuple[Any, ...], kw: dict[str, Any]) -> None:
        trace, self.lock = Trace(), RLock()
        self.holes: list[Variable] = []
        self.names: list[str] = []

        def hole(x: Any, name: str) -> Any:
            if not isinstance(x, (Variable, NdArray)):
                return x
            nd = NdArray.unwritten(x.spec)
            need = isinstance(x, Variable) and x.need_grad
            self.names.append(name)
            self.holes.append(Variable.of_edge(Value.leaf(nd, need), nd))
            return self.holes[-1]

        with using(auto_forward=False, record=True), tracing(trace, defers=True):
            named = [hole(a, n) for a, n in zip(args, _argument_names(f, len(args)), strict=True)]
            self.result = f(*named, **{k: hole(v, k) for k, v in kw.items()})
        self.outputs = _variables(self.result)
        self.grads = [(nd, g) for nd, g in trace.grads.values() if g is not None]
        self.zeroed = [nd for nd, g in trace.grads.values() if g is None]
        kept = [v.edge for v in self.outputs] + [g.edge for _, g in self.grads]
        ends = kept + trace.effects  # what writes state runs; its results are not kept for that
        self.ends, self.nodes = ends, (nodes := capture(ends))
        infer_again(nodes)
        self.epoch, self.print = EPOCH.now, fingerprint(nodes, ends)
        # passes may treat what comes after the first backward() as the second part of a step
        self.cut = sum(n.seq <= trace.boundary for n in nodes) if trace.boundary else None
        self.kept = {v.key for v in kept}
        self.tiled = {g.edge.key: None for _, g in self.grads}
        self.saved: tuple[Program, Binding] | None = None
        self.plan = plan = Plan(nodes, self.kept, self.cut, gradients=self.tiled)
        slots = [plan.slot_of.get(g.edge.key, 0) for _, g in self.grads]
        made = {s for step in plan.steps for s in step.outs if s not in plan.root}
        self.own = [s in made and slots.count(s) == 1 for s in slots]
        # gradients that the run reads from the buffer it would write the new value to
        leaves = {id(nd) for _, nd, *_ in (*plan.binding.given, *plan.binding.ordered)}
        self.added_to = [
            (nd, g.edge.key)
            for (nd, g), own in zip(self.grads, self.own, strict=True)
            if own and id(nd) in leaves
        ]

    def valid(self) -> bool:
        """Whether no flag, shape or dtype of the recorded graph has changed since."""
        if self.epoch != EPOCH.now:
            if fingerprint(self.nodes, self.ends) != self.print:
                return False
            self.epoch = EPOCH.now
        return True

    def run(self, arrays: list[NdArray]) -> Any:
        with self.lock:  # all threads use the plan's buffers
            return self._run(arrays)

    def _run(self, arrays: list[NdArray]) -> Any:
        plan = self.plan
        for hole, nd in zip(self.holes, arrays, strict=True):
            if hole._data.bufs is not nd.bufs:
                hole._data.become(nd)
        for nd, key in self.added_to:
            space, buf = plan.published(plan.slot_of[key])
            if space in nd.bufs and nd.bufs[space] is buf:
                nd.write(space, buf.copy())
        plan.run_both()
        for (nd, g), own in zip(self.grads, self.own, strict=True):
            slot, spec = plan.slot_of.get(g.edge.key), g.spec
            found = (plan.space, g._data.read(plan.space)) if slot is None else plan.published(slot)
            space, buf = found
            if spec.is_half:  # as in accumulate()
                spec = spec.with_dtype(np.float32)
                buf, own = buf.astype(np.float32), True
            nd.spec = spec
            nd.write(space, buf if own else buf.copy())
        for nd in self.zeroed:
            nd.zero()
        return _rebuild(self.result, self._copy)

    def add_to(self, saver: Saver, name: str) -> None:
        """Add the program of this call to a file: gradients that it adds to are handed on.

        It is made at the first save; the next ones take as long as it takes to write arrays.
        """
        with self.lock:
            if self.saved is None:
                self.saved = lower(self.nodes, self.kept, self.cut, self.kept, self.tiled)
            self._add_to(saver, name, *self.saved)

    def _add_to(self, saver: Saver, name: str, program: Program, binding: Binding) -> None:
        for key, v in _named("y", self.result).items():
            if v.edge.key not in binding.slot_of:
                raise ValueError(f"save: {name} returns {key!r}, which no function computes")
            program.outputs[key] = binding.slot_of[v.edge.key]
        slots = {id(nd): i for i, nd in binding.arrays.items()}
        for nd, g in self.grads:
            if id(nd) in slots and g.edge.key in binding.slot_of:
                program.carries[slots[id(nd)]] = binding.slot_of[g.edge.key]
        for nd in self.zeroed:
            if id(nd) in slots:
                program.carries[slots[id(nd)]] = 0
        holes = zip(self.names, self.holes, strict=True)
        saver.add(name, program, binding, {id(v._data): key for key, v in holes})

    def network(self, name: str) -> tuple[dict[str, Variable], dict[str, Variable]]:
        """What is given and what is returned, by name.

        Raises:
            ValueError: The call, of the function of this name, does more than to compute that.
        """
        found = _named("y", self.result)
        computed = capture([v.edge for v in found.values()])
        known = {id(n) for n in computed}
        more = [n for n in self.nodes if id(n) not in known or n.op.name == "store"]
        does = ""
        if self.grads or self.zeroed:
            does = "computes gradients"
        elif more:
            does = f"writes arrays, at {at(more[0].op.name, more[0].origin)}"
        elif not computed:
            does = "returns nothing that a function computes"
        if does:
            raise ValueError(
                f"save: {name} {does}, which is no network: save it as .nnlp, or record a function "
                "of the forward pass alone"
            )
        inputs = dict(zip(self.names, self.holes, strict=True))
        outputs: dict[str, Variable] = {}
        for key, v in found.items():
            outputs[unique(key, {*inputs, *outputs})] = v
        return inputs, outputs

    def _value(self, v: Variable) -> Any:
        slot = self.plan.slot_of.get(v.edge.key)
        return v._data.read(self.plan.space) if slot is None else self.plan.slots[slot]

    def _copy(self, v: Variable) -> Variable:
        nd = NdArray.holding(v.spec, self.plan.space, self._value(v).copy())
        return Variable.of_edge(Value.leaf(nd), nd)


def _argument_names(f: Callable[..., Any], count: int) -> list[str]:
    """Names of the first arguments of a function; "x3" where it does not say."""
    code = getattr(f, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    return [*names[:count], *(f"x{i}" for i in range(len(names[:count]), count))]


def _variables(result: Any) -> list[Variable]:
    if isinstance(result, Variable):
        return [result]
    if isinstance(result, dict):
        return [v for r in result.values() for v in _variables(r)]
    if isinstance(result, (tuple, list)):
        return [v for r in result for v in _variables(r)]
    return []


def _named(name: str, result: Any) -> dict[str, Variable]:
    """The Variables in a result by name: "y", "y/0", "y/loss"; a dictionary's by their keys."""
    if isinstance(result, Variable):
        return {name: result}
    if isinstance(result, dict):
        return {k: v for key, r in result.items() for k, v in _named(str(key), r).items()}
    if isinstance(result, (tuple, list)):
        parts = enumerate(result)
        return {k: v for n, r in parts for k, v in _named(f"{name}{n}", r).items()}
    return {}


def _rebuild(result: Any, f: Callable[[Variable], Variable]) -> Any:
    """The result with f applied to every Variable in it."""
    if isinstance(result, Variable):
        return f(result)
    if isinstance(result, dict):
        return {k: _rebuild(r, f) for k, r in result.items()}
    if isinstance(result, (tuple, list)):
        return type(result)([_rebuild(r, f) for r in result])
    return result


def compile(f: Callable[..., Any]) -> Callable[..., Any]:
    """Run a function as a plan that is recorded at its first call with arguments of each shape.

    The plans of the latest 128 combinations of arguments stay, see nnl.set_cache_size.

    Args:
        f: A function of Variables, NdArrays and hashable values. It may call forward(), backward()
            and the methods of solvers: a whole training step becomes one plan. Arithmetic of
            NdArrays is recorded too, in place as well: `p.data -= 0.1 * p.grad`,
            `t.data.copy_from(y.data)`, `t.data.zero()` and `t.d = 0` happen at every run.

    Python code in f runs only while it is recorded. Later runs see again what it saw then:

    - numbers, strings and numpy arrays, those given to functions and to `t.d = 0` included; a
      learning rate or another hyperparameter of a solver is followed if it is set outside of f;
    - branches, loops, prints and counters; shapes, dtypes and flags of arguments, for each
      combination of which f is recorded once; the context;
    - Variables and NdArrays that f makes, which are made once, and parameters, created once;
    - calls that change something besides arrays: `nnl.seed`, `clear_parameters`,
      `set_learning_rate`, `need_grad = ...`; hooks of forward() and backward() do not run.

    What would be lost or stay as it is without notice raises ValueError at its line: to read `.d`,
    to write numpy arrays into it, or to share memory, unless f itself has made the array and no
    function has read it yet. Writes through a numpy array that was taken from `.d` before are not
    seen.

    Returns:
        A function with the same arguments. The Variables it returns are new leaves.
    Raises:
        TypeError: An argument is neither Variable nor NdArray nor hashable.

    Example:
        >>> import nnl as nn
        >>> double = nn.compile(lambda x: x * 2)
        >>> x = nn.Variable((2,))
        >>> x.d = 3
        >>> double(x).d
        array([6., 6.], dtype=float32)

    `double.save("double.nnlp")` saves what has been recorded as programs, one for each combination
    of arguments, with the arrays they use as they are now; see nnl.load_program. A function of the
    forward pass that was recorded once is a network as well: `save` writes .nnp, .onnx and what
    else `nnl convert` does.
    """
    cache = Plans()

    @wraps(f)
    def run(*args: Any, **kw: Any) -> Any:
        if STATE.trace is not None:
            return f(*args, **kw)  # already inside a recording
        arrays: list[NdArray] = []
        key: list[Any] = [STATE.target]
        for a in (*args, *kw.values()):
            if isinstance(a, (Variable, NdArray)):
                arrays.append(a if isinstance(a, NdArray) else a._data)
                key.append((a.spec, isinstance(a, Variable) and a.need_grad))
            elif isinstance(a, np.ndarray):
                raise TypeError(
                    f"compile: {getattr(f, '__name__', 'f')} got a numpy array; wrap it with "
                    "nnl.Variable.from_numpy_array"
                )
            else:
                key.append(exact(a))
        key += kw
        try:
            compiled = cache.find(tuple(key))
        except TypeError:
            raise TypeError(
                f"compile: every argument of {getattr(f, '__name__', 'f')} must be a Variable, an "
                f"NdArray or hashable, got {[type(a).__name__ for a in args]}"
            ) from None
        if compiled is None or not compiled.valid():
            compiled = cache.put(tuple(key), lambda: Compiled(f, args, kw))
        return compiled.run(arrays)

    # without references to `run`, so that it goes when nobody holds it
    name = run.__name__.strip("<>")
    run.add_to = partial(_add_to, cache)  # type: ignore[attr-defined]
    run.save = partial(_save, cache, name)  # type: ignore[attr-defined]
    return run


def _add_to(cache: Plans, saver: Saver, name: str) -> None:
    """Add all that has been recorded of a function to a file."""
    if not cache:
        raise ValueError(f"save: {name} has not been called, so nothing is recorded")
    for n, compiled in enumerate(cache.values()):
        compiled.add_to(saver, name if n == 0 else f"{name}.{n + 1}")


def _save(cache: Plans, name: str, path: str | os.PathLike[str]) -> None:
    """Write what has been recorded of a function as programs, .nnlp, or as a network."""
    file = os.fspath(path)
    if cache and not file.lower().endswith(".nnlp"):
        if len(cache) > 1:
            raise ValueError(
                f"save: {file} takes one network, and {name} was recorded for {len(cache)} "
                "combinations of arguments: .nnlp takes all of them"
            )
        (compiled,) = cache.values()
        NETWORK_FILES["save"](file, name, *compiled.network(name))
        return
    saver = Saver()
    _add_to(cache, saver, name)
    saver.write(path)
