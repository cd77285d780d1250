# SPDX-License-Identifier: Apache-2.0
"""Solvers: networks that learn, tests on the way, snapshots that go on."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import nnl.functions as F
import nnl.solvers as S
from nnl.converters.caffe.messages import enum_name, messages, parse_text
from nnl.converters.caffe.weights import blob_parts, nested, parse_binary, values_of, write_whole
from nnl.core.arguments.suggest import did_you_mean
from nnl.core.ops import random
from nnl.dialects.caffe.net import TEST, TRAIN, Net
from nnl.logger import logger
from nnl.workspace import Function, Tensor, Updater, gradients

Array = np.ndarray[Any, Any]

# type -> (makes what updates, of a SolverParameter; names of its states in a snapshot's order)
RULES: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "SGD": (lambda p: S.Momentum(0.0, p.momentum), ("m",)),
    "Nesterov": (lambda p: S.Nesterov(0.0, p.momentum), ("m",)),
    "AdaGrad": (lambda p: S.Adagrad(0.0, p.delta), ("v",)),
    "RMSProp": (lambda p: S.RMSprop(0.0, p.rms_decay, p.delta), ("v",)),
    "AdaDelta": (lambda p: S.Adadelta(0.0, p.momentum, p.delta), ("e_sqr_grad", "e_sqr_delta")),
    "Adam": (lambda p: S.Adam(0.0, p.momentum, p.momentum2, p.delta), ("mean", "var")),
}


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


# lr_policy -> what the base rate is multiplied with, of a SolverParameter and an iteration
POLICIES: dict[str, Callable[[Any, int], float]] = {
    "fixed": lambda p, i: 1.0,
    "step": lambda p, i: p.gamma ** (i // p.stepsize),
    "exp": lambda p, i: p.gamma**i,
    "inv": lambda p, i: (1 + p.gamma * i) ** -p.power,
    "multistep": lambda p, i: p.gamma ** sum(i >= s for s in p.stepvalue),
    "poly": lambda p, i: max(0.0, 1 - i / p.max_iter) ** p.power,
    "sigmoid": lambda p, i: _sigmoid(p.gamma * (i - p.stepsize)),
}
NEEDS = {"step": ("stepsize",), "poly": ("max_iter",), "multistep": ("stepvalue",)}


class _Update(Updater):
    """Caffe's order: clip all gradients together, divide them, add what regularizes, update."""

    def __init__(self, p: Any, pairs: Sequence[tuple[Tensor, Tensor]], net: Net) -> None:
        self.clip, self.size = p.clip_gradients, p.iter_size
        self.l1 = p.regularization_type == "L1"
        used = [q for q in net.parameters if q.lr_mult]
        self.decay = [p.weight_decay * q.decay_mult for q in used]
        super().__init__(
            lambda: RULES[p.type][0](p),
            pairs,
            [q.lr_mult for q in used],
            [q.decay_mult for q in used],
            0.0 if self.l1 else p.weight_decay,
            accumulate=p.iter_size > 1,
        )

    def _record(self) -> None:
        variables = [v for s in self.solvers.values() for v in s.get_parameters().values()]
        if self.clip > 0:
            S.clip_grad_norm(variables, self.clip)
        for solver in self.solvers.values():
            if self.size > 1:
                solver.scale_grad(1 / self.size)
        if self.l1:
            for (t, _), rate in zip(self.pairs, self.decay, strict=True):
                v = t.workspace.parameter(t.key)
                if rate and v is not None:
                    v.grad += F.sign(v).data * rate
        super()._record()


class Solver:
    """Trains a network as a solver prototxt says.

    Args:
        solver_file: Path of a prototxt, or a SolverParameter.
        shapes: {top: sizes} of layers that read databases: their tops are fed instead.
    Attributes:
        net, test_nets: The networks. A test net has the parameters of the net, not copies.
        iter: Number of updates so far.
        base_lr: A tensor of the workspace: what is fed to it holds from the next update on.
        losses: Of the latest `average_loss` iterations.
    Raises:
        ValueError: The text says what of the prototxt cannot be used.
    """

    type = ""

    def __init__(self, solver_file: Any, shapes: Mapping[str, Sequence[int]] | None = None) -> None:
        p = self.param = messages()["SolverParameter"]()
        if hasattr(solver_file, "DESCRIPTOR"):
            self.where = "SolverParameter"
            p.CopyFrom(solver_file)
        else:
            self.where = os.fspath(solver_file)
            with open(self.where, encoding="utf-8") as file:
                p.CopyFrom(parse_text("SolverParameter", file.read(), self.where))
        p.type = self._checked(p)
        if p.random_seed >= 0:
            random.seed(p.random_seed)
        self.net = self._nets(shapes, p.train_state, TRAIN)[0]
        self.test_nets: list[Net] = []
        for i in range(self._tests()):
            state = p.test_state[i] if i < len(p.test_state) else messages()["NetState"]()
            self.test_nets.append(self._nets(shapes, state, TEST, i)[0])
            self.test_nets[-1].share_with(self.net)
        for path in p.weights:
            self.net.copy_from(path)
        self.iter = 0
        self.losses: deque[float] = deque(maxlen=max(1, p.average_loss))
        ws = self.net.workspace
        self.base_lr = Tensor(ws, f"{self.net.name}/base_lr", (), np.float64)
        ws.keep(self.base_lr, p.base_lr, need_grad=False)
        used = [q.tensor for q in self.net.parameters if q.lr_mult]
        self.updater: _Update | None = None
        updates = {q.tensor: t for layer in self.net.layers for q, t in layer.updates}
        outputs = [self.net.ends[name] for name in self.net.outputs]
        self._targets = [*outputs, *([self.net.loss] if self.net.loss_weights else [])]
        if used:
            found = gradients([self.net.loss], used, name=f"{self.net.name}/gradients")
            self.updater = _Update(p, list(zip(used, found, strict=True)), self.net)
        once = p.iter_size == 1
        self._step = Function([], self._targets, updates, self.updater, once, name=self.net.name)

    def _checked(self, p: Any) -> str:
        """The type of the solver, after checks of what depends on nothing else."""
        kind = self.type or p.type
        if p.HasField("solver_type") and not self.type:
            old = enum_name(p, "solver_type")
            kind = next(k for k in RULES if k.upper() == old)
        if kind not in RULES:
            known = f"{', '.join(RULES)}{did_you_mean(kind, RULES)}"
            raise ValueError(f"{self.where}: type {kind!r} is none of {known}")
        policy = p.lr_policy or "fixed"
        if policy not in POLICIES:
            raise ValueError(
                f"{self.where}: lr_policy {policy!r} is none of {', '.join(POLICIES)}"
                f"{did_you_mean(policy, POLICIES)}"
            )
        p.lr_policy = policy
        for field in NEEDS.get(policy, ()):
            value = getattr(p, field)
            if not value or (isinstance(value, int) and value < 1):
                raise ValueError(f"{self.where}: lr_policy {policy!r} needs a positive {field}")
        if p.regularization_type not in ("L1", "L2"):
            raise ValueError(
                f"{self.where}: regularization_type is {p.regularization_type!r}, wanted L1 or L2"
            )
        if p.iter_size < 1 or p.average_loss < 1:
            raise ValueError(
                f"{self.where}: iter_size is {p.iter_size} and average_loss {p.average_loss}, "
                "wanted at least 1"
            )
        return str(kind)

    def _tests(self) -> int:
        p = self.param
        own = len(p.test_net) + len(p.test_net_param)
        n = own or (len(p.test_iter) if p.net or p.HasField("net_param") else 0)
        if n != len(p.test_iter):
            raise ValueError(f"{self.where}: {len(p.test_iter)} test_iter for {n} test nets")
        if n and p.test_interval < 0:
            raise ValueError(f"{self.where}: test_interval is {p.test_interval}, wanted at least 0")
        return n

    def _nets(self, shapes: Any, state: Any, phase: int, i: int = 0) -> list[Net]:
        p, sources = self.param, []
        if phase == TRAIN:
            sources = [p.train_net] if p.train_net else []
            sources += [p.train_net_param] if p.HasField("train_net_param") else []
        else:
            sources = [*p.test_net, *p.test_net_param][i : i + 1]
        both = [p.net] if p.net else []
        sources = sources or both + ([p.net_param] if p.HasField("net_param") else [])
        if len(sources) != 1:
            raise ValueError(f"{self.where}: it names {len(sources)} networks to train, wanted one")
        source = sources[0]
        if isinstance(source, str):
            beside = os.path.join(os.path.dirname(self.where), os.path.basename(source))
            source = beside if not os.path.exists(source) and os.path.exists(beside) else source
        return [
            Net(source, phase=phase, level=state.level, stages=list(state.stage), shapes=shapes)
        ]

    # ---- learning ----

    @property
    def lr(self) -> float:
        """The learning rate of the next update."""
        base = self.base_lr.workspace.fetch(self.base_lr).item()
        return float(base * POLICIES[self.param.lr_policy](self.param, self.iter))

    def step(self, iterations: int) -> None:
        """Train for some iterations, with tests, messages and snapshots as the prototxt says.

        Raises:
            ValueError: No input has a value, or a layer has no more data.
        """
        p = self.param
        for _ in range(iterations):
            if p.test_interval and self.iter % p.test_interval == 0:
                if self.iter or p.test_initialization:
                    self.test_all()
            loss, values = 0.0, []
            if p.iter_size > 1:
                self.net.clear_param_diffs()
            for _ in range(p.iter_size):
                self.net.next_batch()
                if self.net.stale:
                    self.net.reshape()
                if self.updater is not None and p.iter_size == 1:
                    self.updater.set_learning_rate(self.lr)
                values = self._step()
                loss += float(values[-1]) / p.iter_size if self.net.loss_weights else 0.0
            if p.iter_size > 1:
                self.apply_update()
            self._forget()
            self.losses.append(loss)
            if p.display and self.iter % p.display == 0:
                self._display(values)
            self.iter += 1
            if p.snapshot and self.iter % p.snapshot == 0:
                self.snapshot()

    def apply_update(self) -> None:
        """Update the parameters by the gradients that they have."""
        if self.updater is not None:
            self.updater.set_learning_rate(self.lr)
            self.updater.apply()

    def _forget(self) -> None:
        """Blobs that a step has not returned are computed again when somebody reads them."""
        kept = {t.key for t in self._targets}
        for layer in self.net.layers:
            for op in layer.operators:
                for t in op.outputs:
                    if t.key not in kept:
                        self.net.workspace.values.pop(t.key, None)
        self.net.behind = True

    def _display(self, values: Sequence[Array]) -> None:
        mean = sum(self.losses) / len(self.losses)
        logger.info("Iteration %d, loss = %g, lr = %g", self.iter, mean, self.lr)
        for name, v in zip(self.net.outputs, values, strict=False):
            logger.info("    Train net output: %s = %s", name, np.array2string(np.ravel(v)[:8]))

    def test_all(self) -> list[dict[str, Array]]:
        """Run the test nets: the mean of each output over `test_iter` batches."""
        found = []
        for i, net in enumerate(self.test_nets):
            sums: dict[str, Array] = {}
            for _ in range(self.param.test_iter[i]):
                for name, value in net.forward().items():
                    sums[name] = sums.get(name, 0) + np.array(value, np.float64)
            means = {name: s / self.param.test_iter[i] for name, s in sums.items()}
            for name, value in means.items():
                logger.info(
                    "    Test net #%d: %s = %s", i, name, np.array2string(np.ravel(value)[:8])
                )
            found.append(means)
        return found

    def solve(self, resume_file: str | None = None) -> None:
        """Train up to `max_iter`, from a snapshot if one is given, and leave a snapshot."""
        if resume_file is not None:
            self.restore(resume_file)
        p = self.param
        self.step(max(0, p.max_iter - self.iter))
        if p.snapshot_after_train and p.snapshot_prefix:
            if not p.snapshot or self.iter % p.snapshot:
                self.snapshot()
        if p.test_interval and self.iter % p.test_interval == 0:
            self.test_all()

    # ---- snapshots ----

    def _states(self) -> list[Any]:
        """The states of the solvers, one for each parameter."""
        if self.updater is None:
            return []
        found = {
            k: s for solver in self.updater.solvers.values() for k, s in solver.get_states().items()
        }
        return [found[t.key] for t, _ in self.updater.pairs]

    def _arrays(self) -> list[Any]:
        """(parameter, state) in a snapshot's order: first of all parameters the first state."""
        used = [q for q in self.net.parameters if q.lr_mult]
        states = self._states()
        return [
            (q, s.pstate[n])
            for n in RULES[self.param.type][1]
            for q, s in zip(used, states, strict=True)
        ]

    def snapshot(self) -> str:
        """Write weights and states: PREFIX_iter_N.caffemodel and .solverstate.

        Returns:
            The path of the state.
        """
        p = self.param
        ending = ".h5" if enum_name(p, "snapshot_format") == "HDF5" else ""
        stem = f"{p.snapshot_prefix or os.path.splitext(self.where)[0]}_iter_{self.iter}"
        model = f"{stem}.caffemodel{ending}"
        self.net.save(model)
        # SGD's velocity is lr times the sum in both; all others agree as well
        state = messages()["SolverState"](iter=self.iter, learned_net=model)
        state.current_step = sum(self.iter >= s for s in p.stepvalue)
        parts: list[Any] = [state.SerializeToString()]
        for q, v in self._arrays():
            parts += nested(3, blob_parts(q._seen(v.d)))
        path = f"{stem}.solverstate"
        write_whole(path, parts)
        return path

    def restore(self, path: str) -> None:
        """Go on from a snapshot.

        Raises:
            ValueError: It is damaged, or of another network or solver; nothing is changed then.
        """
        with open(path, "rb") as file:
            state = parse_binary("SolverState", file.read(), path)
        pairs = self._arrays()
        arrays = [values_of(b, path) for b in state.history]
        if len(arrays) != len(pairs):
            raise ValueError(
                f"{path}: {len(arrays)} states, wanted {len(pairs)} of {self.param.type}"
            )
        for (q, _), a in zip(pairs, arrays, strict=True):
            if a.size != q.count:
                raise ValueError(
                    f"{path}: a state of {q.tensor.name!r} has {a.shape}, wanted {q.shape}"
                )
        if state.learned_net:
            model = state.learned_net
            beside = os.path.join(os.path.dirname(path), os.path.basename(model))
            self.net.copy_from(model if os.path.exists(model) else beside)
        for (q, v), a in zip(pairs, arrays, strict=True):
            q._seen(v.d)[...] = a.reshape(q.shape)
        self.iter = state.iter
        for solver in () if self.updater is None else self.updater.solvers.values():
            states = solver.get_states()
            for s in states.values():
                s.t = self.iter
            solver.set_states(states)


def _of_type(name: str) -> type[Solver]:
    return type(f"{name}Solver", (Solver,), {"type": name, "__doc__": f"Solver that uses {name}."})


SGDSolver, NesterovSolver = _of_type("SGD"), _of_type("Nesterov")
AdaGradSolver, RMSPropSolver = _of_type("AdaGrad"), _of_type("RMSProp")
AdaDeltaSolver, AdamSolver = _of_type("AdaDelta"), _of_type("Adam")


def get_solver(solver_file: Any, **options: Any) -> Solver:
    """The solver of the type that a prototxt names."""
    return Solver(solver_file, **options)
