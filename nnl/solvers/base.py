# SPDX-License-Identifier: Apache-2.0
"""Solver: parameters, their states, and one code path for computing and for recording updates."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from nnl.core.arguments.annotations import flag, shown
from nnl.core.arguments.suggest import SOLVER, knows_elsewhere
from nnl.core.arguments.warn_once import warn_once
from nnl.core.arrays.bulk import BULK
from nnl.core.arrays.spec import ShapeError, Spec
from nnl.core.graph.dispatch import bind, execute
from nnl.core.graph.variable import Variable
from nnl.core.interpreters.callback import SOLVER_HOOKS
from nnl.core.ops.op import OPS, Op
from nnl.core.settings.context import STATE
from nnl.solvers.gradient import change, has_inf, has_inf_or_nan, has_nan, order_of
from nnl.solvers.hyperparameters import check_names, checked, not_negative, number
from nnl.solvers.split import Pieces, cut_piece
from nnl.solvers.states import Stated

Hook = Callable[[], None]
MASTER = "master"  # the state that is a parameter of 16 bits in float32


class _Entry:
    """A parameter with its states; `inputs` are what follows (w, g) in the inputs of its step.

    Attributes:
        piece: The same with this rank's piece as its variable, where ranks have pieces.
    """

    __slots__ = ("rule", "variable", "pstate", "t", "inputs", "piece")

    def __init__(
        self,
        op: Op,
        variable: Variable,
        pstate: dict[str, Variable],
        t: Variable,
        lr: Variable,
        over: Pieces | None = None,
    ) -> None:
        self.piece = None if over is None else _Entry(op, over.of(variable), pstate, t, lr)
        self.rule, self.variable, self.pstate, self.t = op, variable, pstate, t
        if variable.spec.dtype.kind in "biu":  # as `w.d = [1, 2]` leaves it
            variable.data.cast(np.float32)
        given = {**pstate, "t": t, "lr": lr}
        self.inputs = tuple([given.get(name) for name in op.inputs[2:]])
        if MASTER in pstate:
            self.inputs += (pstate[MASTER],)


def _zeros(shape: tuple[int, ...], names: tuple[str, ...]) -> dict[str, Variable]:
    spec = Spec.of(shape, STATE.target.float_dtype)
    out = {}
    for name in names:
        out[name] = Variable(spec.shape)
        out[name].data.set_spec(spec)
    return out


def _scalar(value: float, dtype: Any) -> Variable:
    return Variable.from_numpy_array(np.array(value, dtype))


@knows_elsewhere(SOLVER)
class Solver(Stated):
    """Base of the solvers. A subclass names its rule, its states and its hyperparameters.

    Class attributes:
        rule: The op that updates one parameter in place.
        states: Names of its state arrays.
        rate: What the learning rate is called: lr, alpha or eta.
        fused: Whether weight decay is part of the rule instead of being added to the gradient.

    Attributes:
        split_over: What is done with pieces, for the ranks that split_states has named.

    Inside a function that nnl.compile records, the methods that change gradients or parameters
    record that instead of doing it.
    """

    rule: Op
    states: tuple[str, ...] = ()
    rate: str = "lr"
    fused: bool = False

    def __new__(cls, *args: Any, **given: Any) -> Any:
        check_names(cls, given)
        return super().__new__(cls)

    def __init__(self, **hyperparameters: Any) -> None:
        rule, given = getattr(self, "rule", None), hyperparameters
        self.info = {k: checked(self.name, k, v, rule) for k, v in given.items()}
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        if rule is None:
            return  # a script's class that passes every call on to a solver
        self._lr = _scalar(self.info[self.rate], np.float64)
        self._next_decay: float | None = None
        self.split_over: Pieces | None = None
        self._plans: dict[Any, Any] = {}  # of the latest update, by kinds of parameters
        self._groups: dict[Any, tuple[Any, list[_Entry]]] | None = None
        self._target = STATE.target  # that they are for
        given = {**self.info, "lr0": self.info[self.rate]}
        if not self.fused:
            given["wd"] = 0.0
        self._hyperparameters = {f: given[f] for f in self.rule.fields if f in given}

    @property
    def name(self) -> str:
        """Name of the class."""
        return type(self).__name__

    def learning_rate(self) -> float:
        """The learning rate of the next update."""
        return float(self._lr.data.read("host"))

    def set_learning_rate(self, learning_rate: float) -> None:
        """Use another learning rate from the next update on.

        Raises:
            ValueError: It is negative or not finite.
        """
        where = f"{self.name}.set_learning_rate"
        self._lr.data.data[()] = not_negative(where, "learning_rate", learning_rate)

    # ---- parameters ----

    def set_parameters(
        self,
        param_dict: Mapping[str, Variable],
        reset: bool = True,
        retain_state: bool = False,
        masters: bool = True,
    ) -> None:
        """Register the parameters to update; their need_grad flags do not matter.

        Args:
            param_dict: Variables by name, as of nnl.get_parameters().
            reset: Forget the parameters registered so far.
            retain_state: With reset=False, names registered before keep their states.
            masters: Parameters of 16 bits get a state "master", themselves in float32, which is
                updated in their place: they are that, rounded. Without, steps that are less than
                half of their last bit are lost. A parameter that somebody else writes is where its
                master goes on from.
        Raises:
            TypeError: param_dict is not a mapping of Variables.
            ShapeError: A state is to be kept for a parameter of another shape.
        """
        where = f"{self.name}.set_parameters"
        if not isinstance(param_dict, Mapping):
            raise TypeError(f"{where}: param_dict is {type(param_dict).__name__}, wanted a dict")
        for key, variable in param_dict.items():
            if not isinstance(variable, Variable):
                name = type(variable).__name__
                raise TypeError(f"{where}: param_dict[{key!r}] is {name}, wanted nnl.Variable")
        reset, retain_state = flag(where, "reset", reset), flag(where, "retain_state", retain_state)
        masters = flag(where, "masters", masters)
        kept = self._entries if retain_state and not reset else {}
        for key, variable in param_dict.items():
            if key in kept and kept[key].variable.shape != variable.shape:
                raise ShapeError(
                    f"{where}: {key!r} has the shape {variable.shape}, the states to keep "
                    f"{kept[key].variable.shape}"
                )
        if not param_dict and reset:
            warn_once(f"{where}: param_dict is empty: call it when the network has been built")
        self._groups = None
        if reset:
            self._entries.clear()
        for key, variable in param_dict.items():
            old = kept.get(key)
            rule, names = self._rule_of(key, variable)
            if masters and variable.spec.is_half:
                names = (*names, MASTER)
            pstate = _zeros(self._state_shape(variable), names) if old is None else old.pstate
            t = _scalar(0, np.int64) if old is None else old.t
            self._entries[key] = _Entry(rule, variable, pstate, t, self._lr, self.split_over)

    setup = set_parameters

    def _rule_of(self, key: str, variable: Variable) -> tuple[Op, tuple[str, ...]]:
        """What updates a parameter, and the names of its states."""
        return self.rule, self.states

    def split_states(self, comm: Any, group: str) -> None:
        """Let each rank of a group store the states of one piece of every parameter, and do that
        piece of every update; what C.shard(level=1) does.

        Raises:
            NotImplementedError: A rule needs whole parameters.
        """
        check_elementwise(self, "split_states")
        states, ranks = self.get_states(), comm.find_group(group)
        self.split_over = Pieces(comm, group)
        self.set_parameters(self.get_parameters())
        for state in states.values():
            for name, v in state.pstate.items():
                state.pstate[name] = piece_of(v, len(ranks), ranks.index(comm.rank))
        self.set_states(states)

    def _state_shape(self, variable: Variable) -> tuple[int, ...]:
        over = self.split_over
        return variable.shape if over is None else over.shape(variable.size)

    def _settings(self, rule: Op, decay: float | None) -> dict[str, Any]:
        """The hyperparameters of a rule; `decay` in place of its own rate, if given."""
        return self._hyperparameters if decay is None else {**self._hyperparameters, "wd": decay}

    def _step(self, entry: _Entry, decay: float | None = None) -> Any:
        """What is applied to (w, g, *entry.inputs)."""
        attrs = entry.rule.attrs(**self._settings(entry.rule, decay))
        if MASTER in entry.pstate:
            given = {"rule": entry.rule.name, "dtype": entry.variable.spec.type_name}
            attrs = OPS["master_update"].attrs(**given, **attrs.as_dict())
        return attrs

    def _alike(self) -> dict[Any, tuple[Any, list[_Entry]]]:
        """Parameters that take the same step, with that."""
        if self._groups is None or self._target is not STATE.target:
            self._groups, self._target = {}, STATE.target
            for entry in self._entries.values():
                kind = entry.rule, entry.variable.spec.type_name * (MASTER in entry.pstate)
                if kind not in self._groups:
                    self._groups[kind] = self._step(entry), []
                self._groups[kind][1].append(entry if entry.piece is None else entry.piece)
        return self._groups

    def get_parameters(self) -> OrderedDict[str, Variable]:
        """The registered parameters by name."""
        return OrderedDict((k, e.variable) for k, e in self._entries.items())

    def remove_parameters(self, keys: Iterable[str]) -> None:
        """Forget parameters and their states; names that are not registered are ignored."""
        if not np.iterable(keys) or not all(isinstance(k, str) for k in keys):
            raise TypeError(f"{self.name}.remove_parameters: keys is {shown(keys)}, wanted names")
        self._groups = None
        for key in keys:
            self._entries.pop(key, None)

    def clear_parameters(self) -> None:
        """Forget all parameters and their states."""
        self._groups = None
        self._entries.clear()

    # ---- gradients ----

    def zero_grad(self) -> None:
        """Set all gradients to zero, lazily: until backward() writes one, update() skips it."""
        STATE.interpreter.now.zero_gradients(list(self._entries.values()))

    def weight_decay(
        self, decay_rate: float, pre_hook: Hook | None = None, post_hook: Hook | None = None
    ) -> None:
        """Let weights decay at the next update.

        Adds decay_rate times the weight to each gradient that is not lazily zero; solvers with
        fused decay use decay_rate at the next update() and their own rate after that.

        Args:
            pre_hook, post_hook: Called before and after each parameter.
        Raises:
            ValueError: decay_rate is negative or not finite.
        """
        rate = not_negative(f"{self.name}.weight_decay", "decay_rate", decay_rate)
        if self.fused:
            self._next_decay = rate
        elif rate:
            self._map_gradients("weight_decay", "decay_gradient", pre_hook, post_hook, rate=rate)

    def clip_grad_by_norm(
        self, clip_norm: float, pre_hook: Hook | None = None, post_hook: Hook | None = None
    ) -> None:
        """Gradient clipping: scale each gradient, by itself, down to a norm of at most clip_norm.

        0 changes nothing. `nnl.solvers.clip_grad_norm` takes the norm of all together.

        Raises:
            ValueError: clip_norm is negative or not a number.
        """
        where = f"{self.name}.clip_grad_by_norm"
        limit = number(where, "clip_norm", clip_norm)
        if not limit >= 0.0:
            raise ValueError(f"{where}: clip_norm is {clip_norm!r}, wanted a number >= 0")
        apart = [v for v in self.get_parameters().values() if getattr(v, "layout", None)]
        if apart and limit:  # whose norms take other ranks
            from nnl.solvers.clip import clip_together

            self._hooked("clip_grad_by_norm", pre_hook, post_hook)
            for v in self.get_parameters().values():
                clip_together([v], limit, stages=False)
            return
        self._map_gradients(
            "clip_grad_by_norm", "clip_gradient", pre_hook, post_hook, clip_norm=limit
        )

    def scale_grad(
        self, scale: float, pre_hook: Hook | None = None, post_hook: Hook | None = None
    ) -> None:
        """Multiply each gradient by a number, 1 / loss_scale for example.

        Raises:
            ValueError: scale is not finite.
        """
        where = f"{self.name}.scale_grad"
        factor = number(where, "scale", scale)
        if not math.isfinite(factor):
            raise ValueError(f"{where}: scale is {scale!r}, wanted a finite number")
        self._map_gradients("scale_grad", "scale_gradient", pre_hook, post_hook, scale=factor)

    def _map_gradients(
        self, method: str, name: str, pre: Hook | None, post: Hook | None, **values: float
    ) -> None:
        """Replace each gradient g that is not lazily zero by op(g), or op(g, w) if it takes two."""
        op, now = OPS[name], STATE.interpreter.now
        hooked = self._hooked(method, pre, post)
        there = [
            (w, (g, w if isinstance(g, Variable) else w.data)[: len(op.inputs)])
            for w in self.get_parameters().values()
            if (g := now.gradient(w)) is not None
        ]
        if hooked:
            for w, inputs in there:
                _before(pre)
                change([w], op, op.attrs(**values), [inputs])
                _after(post)
        elif there:
            change([w for w, _ in there], op, op.attrs(**values), [xs for _, xs in there])

    def check_inf_grad(self, pre_hook: Hook | None = None, post_hook: Hook | None = None) -> bool:
        """Whether any gradient has an infinite element."""
        return self._check("check_inf_grad", has_inf, pre_hook, post_hook)

    def check_nan_grad(self, pre_hook: Hook | None = None, post_hook: Hook | None = None) -> bool:
        """Whether any gradient has an element that is not a number."""
        return self._check("check_nan_grad", has_nan, pre_hook, post_hook)

    def check_inf_or_nan_grad(
        self, pre_hook: Hook | None = None, post_hook: Hook | None = None
    ) -> bool:
        """Whether any gradient has an element that is not finite."""
        return self._check("check_inf_or_nan_grad", has_inf_or_nan, pre_hook, post_hook)

    def _check(
        self, method: str, test: Callable[[Any], bool], pre: Hook | None, post: Hook | None
    ) -> bool:
        if not STATE.interpreter.has_values:
            raise NotImplementedError(
                f"{self.name}.{method}: gradients have no values while nnl.compile records; "
                "check them outside of the compiled function"
            )
        hooked = self._hooked(method, pre, post)
        if not hooked and on_device():
            every = [e.variable.edge.grad for e in self._entries.values()]
            grads = [g for g in every if not g.zeroing]
            found = OPS["finite_check"](*grads).data if grads else (False, False)
            return test(np.where(found, (np.inf, np.nan), 0.0))
        for entry in self._entries.values():
            grad = entry.variable.edge.grad
            if grad.zeroing:
                continue
            if hooked:
                _before(pre)
            found = test(grad.read(order_of(grad)))
            if hooked:
                _after(post)
            if found:
                return True
        return False

    def _hooked(self, method: str, pre: Hook | None, post: Hook | None) -> bool:
        for name, hook in (("pre_hook", pre), ("post_hook", post)):
            if hook is not None and not callable(hook):
                raise TypeError(f"{self.name}.{method}: {name} is {shown(hook)}, wanted a function")
        hooked = pre is not None or post is not None or SOLVER_HOOKS.active
        if hooked and not STATE.interpreter.has_values:
            raise NotImplementedError(
                f"{self.name}.{method}: hooks cannot run inside a function that nnl.compile "
                "records; remove them or call the solver outside of it"
            )
        return hooked

    # ---- update ----

    def update(
        self, update_pre_hook: Hook | None = None, update_post_hook: Hook | None = None
    ) -> None:
        """Update each parameter whose gradient is not lazily zero.

        A parameter whose gradient is still in the state left by zero_grad() keeps its value, its
        states and its step number: momentum does not coast, weights do not decay.

        Args:
            update_pre_hook, update_post_hook: Called before and after each parameter.
        Raises:
            ShapeError: A parameter's shape changed after set_parameters.
        """
        if not self._entries:
            warn_once(f"{self.name}.update: there are no parameters: call set_parameters first")
        hooked = self._hooked("update", update_pre_hook, update_post_hook)
        now = STATE.interpreter.now
        taken: list[tuple[Variable, Variable]] = []
        if self.split_over is not None:
            taken = self.split_over.take(self._entries.values())
        for kind, (attrs, entries) in self._alike().items():
            if self._next_decay is not None:
                attrs = self._step(entries[0], self._next_decay)
            op = attrs.op
            if not hooked:
                self._plans[kind] = now.update(op, attrs, entries, self._plans.get(kind))
            for entry in entries if hooked else ():
                for datas in BULK.to_update([entry]):
                    _before(update_pre_hook)
                    specs = tuple([None if d is None else d.spec for d in datas])
                    execute(bind(op, attrs, STATE.target, specs), datas)
                    _after(update_post_hook)
        self._next_decay = None
        if self.split_over is not None:
            self.split_over.give(taken)

    def weight_decay_is_fused(self) -> bool:
        """Whether weight_decay() acts inside update() instead of on the gradients."""
        return self.fused

    def __repr__(self) -> str:
        settings = ", ".join(f"{k}={v!r}" for k, v in self.info.items())
        return f"{self.name}({settings}) with {len(self._entries)} parameters"


def check_elementwise(solver: Solver, where: str) -> None:
    """
    Raises:
        NotImplementedError: A rule makes an element depend on others of its parameter.
    """
    for key, entry in solver._entries.items():
        if not entry.rule.attrs_class.by_element:
            raise NotImplementedError(
                f"{where}: {solver.name} updates {key!r} by {entry.rule.name}, which needs the "
                "whole parameter: use a solver whose rule is element by element, as Adam's"
            )


def piece_of(v: Variable, n: int, place: int) -> Variable:
    """As cut_piece."""
    return Variable.from_numpy_array(cut_piece(np, v.d, n, place))


def on_device() -> bool:
    """Whether the current context computes elsewhere than in host memory."""
    return STATE.target.backends[0].space != "host"


def _before(hook: Hook | None) -> None:
    for global_hook in list(SOLVER_HOOKS.pre.values()):
        global_hook()  # type: ignore[call-arg]
    if hook is not None:
        hook()


def _after(hook: Hook | None) -> None:
    if hook is not None:
        hook()
    for global_hook in list(SOLVER_HOOKS.post.values()):
        global_hook()  # type: ignore[call-arg]
