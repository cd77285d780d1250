# SPDX-License-Identifier: Apache-2.0
"""The same networks in nnl and in torch, run call by call: forward, backward and update in any
order, and what users do between them."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as T

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S

LR, KEEP = 0.1, 0.9
COUNT = count()  # parameters outlive their network: each has a scope of its own
X = {k: np.random.default_rng(ord(k)).normal(size=(4, 16, 6, 6)).astype("f") for k in "abv"}
NOISE = np.random.default_rng(0).normal(size=(4, 8)).astype("f")
# Graphs of one network, which want its weights in different orders in memory; and of a GAN.
TRAINING = ("a", "b", "again", "plain", "alone")
VALIDATION = ("running", "batch")
OF = {k: "net" for k in (*TRAINING, *VALIDATION)} | {"generate": "gen", "tell": "dis"}


def shapes(names: list[str]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    found = {
        "net/c1/conv/W": (32, 16, 3, 3), "net/bn/bn/gamma": (1, 32, 1, 1),
        "net/bn/bn/beta": (1, 32, 1, 1), "net/bn/bn/mean": (1, 32, 1, 1),
        "net/bn/bn/var": (1, 32, 1, 1), "net/c2/conv/W": (16, 32, 1, 1),
        "net/fc/affine/W": (16, 24), "net/fc/affine/b": (24,), "net/out/affine/W": (24, 3),
        "net/out/affine/b": (3,),
        "gen/fc/affine/W": (8, 576), "gen/fc/affine/b": (576,), "gen/c/conv/W": (16, 16, 3, 3),
        "dis/c/conv/W": (32, 16, 3, 3), "dis/fc/affine/W": (32, 1), "dis/fc/affine/b": (1,),
    }  # fmt: skip
    assert sorted(found) == sorted(names)
    values = {k: rng.normal(size=s).astype("f") * 0.2 for k, s in found.items()}
    return {k: v**2 + 1 if k.endswith("var") else v for k, v in values.items()}


class Nnl:
    """Networks of nnl, in a mode: "keep" (no flags), "clear" (with them), "dynamic"."""

    def __init__(self, context: nn.Context, mode: str) -> None:
        self.context, self.mode = context, mode
        self.scope = f"nnl{next(COUNT)}"
        self.held: dict[str, np.ndarray] = {}
        with self.inside():
            self.graphs = self._graphs()
            self.params = dict(nn.get_parameters(grad_only=False))
            for k, v in shapes(list(self.params)).items():
                self.params[k].d = v
            self.solvers = {}
            for part in ("net", "gen", "dis"):
                self.solvers[part] = S.Momentum(LR, KEEP)
                grads = {k: v for k, v in nn.get_parameters().items() if k.startswith(part)}
                self.solvers[part].set_parameters(grads)

    def inside(self) -> Any:
        stack = ExitStack()
        stack.enter_context(nn.context_scope(self.context))
        stack.enter_context(nn.parameter_scope(self.scope))
        stack.enter_context(nn.auto_forward(self.mode == "dynamic"))
        return stack

    def net(self, name: str, x: Any) -> nn.Variable:
        with nn.parameter_scope("net"):
            h = PF.convolution(x, 32, (3, 3), pad=(1, 1), name="c1", with_bias=False)
            if name == "alone":
                w = nn.get_parameters(grad_only=False)
                h = F.batch_normalization(h, w["bn/bn/beta"], w["bn/bn/gamma"], None, None)
            else:
                h = PF.batch_normalization(h, batch_stat=name != "running", name="bn")
            h = F.relu(h)
            h = F.tanh(PF.convolution(h, 16, (1, 1), name="c2", with_bias=False))
            h = F.tanh(PF.affine(F.global_average_pooling(h), 24, name="fc"))
            y = F.mean(PF.affine(h, 3, name="out") ** 2)
            if name == "plain":
                y = y + 0.01 * F.sum(nn.get_parameters()["c1/conv/W"] ** 2)
            return y

    def tell(self, x: nn.Variable, real: float) -> nn.Variable:
        with nn.parameter_scope("dis"):
            h = F.tanh(PF.convolution(x, 32, (3, 3), pad=(1, 1), name="c", with_bias=False))
            y = PF.affine(F.global_average_pooling(h), 1, name="fc")
            return F.mean(F.sigmoid_cross_entropy(y, F.constant(real, y.shape)))

    def fake(self) -> nn.Variable:
        with nn.parameter_scope("gen"):
            h = F.reshape(F.tanh(PF.affine(leaf(NOISE), 576, name="fc")), (4, 16, 6, 6))
            return PF.convolution(h, 16, (3, 3), pad=(1, 1), name="c", with_bias=False)

    def _graph(self, name: str) -> nn.Variable:
        if name == "generate":
            fake = self.fake()
            fake.persistent = True
            self.seen = fake.get_unlinked_variable(need_grad=True)
            return self.tell(fake, 1.0)
        if name == "tell":
            return self.tell(self.seen, 0.0) + self.tell(leaf(X["a"]), 1.0)
        x = leaf(X[name if name in "ab" else "v" if name in VALIDATION else "a"])
        if name == "again":
            with nn.recompute():
                return self.net(name, x)
        return self.net(name, x)

    def _graphs(self) -> dict[str, nn.Variable]:
        return {k: self._graph(k) for k in OF}

    # ---- what a script does ----

    def forward(self, name: str) -> float:
        with self.inside():
            if self.mode == "dynamic":
                self.graphs[name] = self._graph(name)
            elif name in VALIDATION:
                self.graphs[name].forward(clear_buffer=self.mode == "clear")
            else:
                self.graphs[name].forward(clear_no_need_grad=self.mode == "clear")
            return float(self.graphs[name].d)

    def backward(self, name: str, hook: Any = None) -> None:
        with self.inside():
            self.graphs[name].backward(
                clear_buffer=self.mode == "clear", communicator_callbacks=hook and hook(self)
            )

    def zero(self, part: str) -> None:
        self.solvers[part].zero_grad()

    def update(self, part: str) -> None:
        with self.inside():
            self.solvers[part].update()

    def clip(self, part: str, norm: float) -> None:
        with self.inside():
            self.solvers[part].clip_grad_by_norm(norm)

    def scale(self, part: str, by: float) -> None:
        with self.inside():
            self.solvers[part].scale_grad(by)

    def weight(self, name: str) -> np.ndarray:
        return self.params[name].d.copy()

    def gradient(self, name: str) -> np.ndarray:
        return self.params[name].g.copy()

    def edit(self, name: str, by: float) -> None:
        """Change a gradient through its numpy array."""
        self.params[name].g[...] *= by

    def assign(self, name: str, value: np.ndarray) -> None:
        self.params[name].d = value

    def multiply(self, name: str, by: float) -> None:
        self.params[name].d *= by

    def hold(self, name: str) -> None:
        self.held[name] = self.params[name].d

    def write_held(self, name: str, by: float) -> None:
        if name in self.held:
            self.held[name][0] *= by

    def drop(self, name: str) -> None:
        self.held.pop(name, None)

    def save(self, path: Path) -> None:
        with self.inside():
            nn.save_parameters(str(path / f"{self.scope}.h5"))

    def load(self, path: Path) -> None:
        with self.inside():
            if (path / f"{self.scope}.h5").exists():
                nn.load_parameters(str(path / f"{self.scope}.h5"))


class Torch:
    """The same in torch."""

    def __init__(self, names: list[str]) -> None:
        values = shapes(names)
        grads = {k for k in values if not k.endswith(("mean", "var"))}
        self.params = {k: torch.tensor(v, requires_grad=k in grads) for k, v in values.items()}
        self.moments = {k: torch.zeros_like(v.data) for k, v in self.params.items() if k in grads}
        self.losses: dict[str, torch.Tensor] = {}
        self.held: set[str] = set()
        self.saved: dict[str, torch.Tensor] = {}
        self.seen = torch.zeros(4, 16, 6, 6)

    def net(self, name: str, x: torch.Tensor) -> torch.Tensor:
        w = {k[4:]: v for k, v in self.params.items() if k.startswith("net")}
        h = T.conv2d(x, w["c1/conv/W"], padding=1)
        mean, var, gamma, beta = [
            w[f"bn/bn/{k}"].view(-1) for k in ("mean", "var", "gamma", "beta")
        ]
        if name == "running":
            h = T.batch_norm(h, mean.clone(), var.clone(), gamma, beta)
        elif name == "alone":
            h = T.batch_norm(h, None, None, gamma, beta, training=True)
        else:
            h = T.batch_norm(h, mean, var, gamma, beta, training=True, momentum=0.1)
        h = torch.tanh(T.conv2d(torch.relu(h), w["c2/conv/W"]))
        h = torch.tanh(h.mean((2, 3)) @ w["fc/affine/W"] + w["fc/affine/b"])
        y = ((h @ w["out/affine/W"] + w["out/affine/b"]) ** 2).mean()
        return y + 0.01 * (w["c1/conv/W"] ** 2).sum() if name == "plain" else y

    def tell(self, x: torch.Tensor, real: float) -> torch.Tensor:
        w = {k[4:]: v for k, v in self.params.items() if k.startswith("dis")}
        h = torch.tanh(T.conv2d(x, w["c/conv/W"], padding=1)).mean((2, 3))
        y = h @ w["fc/affine/W"] + w["fc/affine/b"]
        return T.binary_cross_entropy_with_logits(y, torch.full_like(y, real))

    def forward(self, name: str) -> float:
        if name == "generate":
            w = {k[4:]: v for k, v in self.params.items() if k.startswith("gen")}
            h = torch.tanh(torch.tensor(NOISE) @ w["fc/affine/W"] + w["fc/affine/b"])
            fake = T.conv2d(h.view(4, 16, 6, 6), w["c/conv/W"], padding=1)
            self.seen, loss = fake.detach(), self.tell(fake, 1.0)
        elif name == "tell":
            loss = self.tell(self.seen, 0.0) + self.tell(torch.tensor(X["a"]), 1.0)
        else:
            key = name if name in "ab" else "v" if name in VALIDATION else "a"
            loss = self.net(name, torch.tensor(X[key]))
        self.losses[name] = loss
        return float(loss.detach())

    def backward(self, name: str, hook: Any = None) -> None:
        self.losses[name].backward(retain_graph=True)
        if hook:
            hook(self)

    def _of(self, part: str) -> dict[str, torch.Tensor]:
        return {k: v for k, v in self.params.items() if k.startswith(part) and v.grad is not None}

    def zero(self, part: str) -> None:
        for v in self._of(part).values():
            v.grad = None

    def update(self, part: str) -> None:
        for k, v in self._of(part).items():
            self.moments[k].mul_(KEEP).add_(v.grad, alpha=LR)
            v.data.sub_(self.moments[k])

    def clip(self, part: str, norm: float) -> None:
        for v in self._of(part).values():
            torch.nn.utils.clip_grad_norm_([v], norm)

    def scale(self, part: str, by: float) -> None:
        for v in self._of(part).values():
            v.grad.mul_(by)

    def weight(self, name: str) -> np.ndarray:
        return self.params[name].detach().numpy().copy()

    def gradient(self, name: str) -> np.ndarray:
        v = self.params[name]
        if v.grad is None:  # who looks at zeros of nnl makes them be there
            v.grad = torch.zeros_like(v.data)
        return v.grad.numpy().copy()

    def edit(self, name: str, by: float) -> None:
        self.gradient(name)
        self.params[name].grad.mul_(by)

    def assign(self, name: str, value: np.ndarray) -> None:
        self.params[name].data.copy_(torch.tensor(value))

    def multiply(self, name: str, by: float) -> None:
        self.params[name].data.mul_(by)

    def hold(self, name: str) -> None:
        self.held.add(name)

    def write_held(self, name: str, by: float) -> None:
        if name in self.held:
            self.params[name].data[0].mul_(by)

    def drop(self, name: str) -> None:
        self.held.discard(name)

    def save(self, path: Path) -> None:
        self.saved = {k: v.detach().clone() for k, v in self.params.items()}

    def load(self, path: Path) -> None:
        for k, v in self.saved.items():
            self.params[k].data.copy_(v)


def leaf(value: np.ndarray) -> nn.Variable:
    return nn.Variable.from_numpy_array(value)
