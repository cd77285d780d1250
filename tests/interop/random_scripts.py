# SPDX-License-Identifier: Apache-2.0
"""Random scripts in NNabla's own API: graphs of several outputs, run in passes that change things.

A script fills `outputs`. The same text is run by NNabla and by nnl; with `DYNAMIC` true, graphs are
made again in every pass under auto_forward.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# Without F.sort: NNabla permutes its gradient wrongly.
UNARY = (
    "F.sin({})", "F.tanh({})", "F.sigmoid({})", "{} * 0.5 + 1.0", "F.exp({} * 0.3)", "F.relu({})",
    "F.softmax({})", "F.reshape({}, (2, 3))", "F.transpose(F.transpose({}, (1, 0)), (1, 0))",
    "F.leaky_relu({})", "{}.reshape((3, 2)).reshape((2, 3))", "F.swish({})", "F.identity({})",
    "F.cumsum({}, axis=1)", "F.add_scalar({}, 0.3)",
)  # fmt: skip
BINARY = (
    "{} + {}", "{} * {}", "{} - {}", "F.maximum2({}, {})", "F.div2({}, 2.5 + F.sigmoid({}))",
    "F.concatenate({}, {}, axis=0)[1:3]", "F.minimum2({}, {})",
)  # fmt: skip
SOLVERS = ("Sgd(0.1)", "Momentum(0.1, 0.9)", "Adam(0.01)", "AdamW(0.01)", "Nesterov(0.1)")


def script(seed: int, dynamic: bool = False) -> str:
    """The text of a random script; the same graph and passes for the same seed."""
    rng = np.random.default_rng(seed)
    pick: Any = lambda of: of[int(rng.integers(len(of)))]  # noqa: E731
    chance: Any = lambda p: rng.random() < p  # noqa: E731
    leaves = [f"x{i}" for i in range(int(rng.integers(1, 4)))]
    lines = [f"r = np.random.RandomState({seed})"]
    needing = [x for i, x in enumerate(leaves) if i == 0 or chance(0.7)]
    for x in leaves:
        lines.append(f"{x} = nn.Variable((2, 3), need_grad={x in needing})")
        lines.append(f"{x}.d = r.randn(2, 3)")
    build, known = [], list(leaves)
    for i in range(int(rng.integers(2, 9))):
        text = pick(UNARY).format(pick(known)) if chance(0.6) else pick(BINARY)
        text = text.format(pick(known), pick(known)) if "{" in text else text
        build.append(f"v{i} = {text}")
        known.append(f"v{i}")
        if not dynamic and chance(0.1):
            build.append(f"v{i}.persistent = True")
    outs = [known[-1], *({pick(known[len(leaves) :])} if chance(0.6) else ())]
    for i, y in enumerate(outs):
        build.append(f"y{i} = F.sum({y} * {pick(leaves)})")
    ys = [f"y{i}" for i in range(len(outs))]
    solver = pick(SOLVERS) if chance(0.4) else None
    if solver:
        lines += [f"s = S.{solver}", "s.set_parameters({'x0': x0})"]
    if not dynamic:
        lines += build
    for k in range(int(rng.integers(1, 4))):
        if dynamic:
            lines += build
        lines += [f"{x}.grad.zero()" for x in leaves if chance(0.8) or k == 0]
        flag = pick(["", "", "clear_no_need_grad=True"])
        together = len(ys) > 1 and chance(0.5)
        if not dynamic and together:
            lines.append(f"nn.forward_all([{', '.join(ys)}]{', ' + flag if flag else ''})")
        for j, y in enumerate(ys):
            if not dynamic and not together:
                lines.append(f"{y}.forward({flag})")
            lines.append(f"outputs['p{k}_{y}'] = {y}.d.copy()")
            last = j == len(ys) - 1 or not (dynamic or together)  # nobody needs what it clears
            clear = "clear_buffer=True" if chance(0.5) and last else ""
            start = f"grad={pick(['1', '0.5', '2.0'])}"
            lines.append(f"{y}.backward({', '.join(p for p in (start, clear) if p)})")
        lines += [f"outputs['p{k}_g{x}'] = {x}.g.copy()" for x in needing]
        if solver:
            lines += ["s.weight_decay(0.01)"] * chance(0.3) + ["s.update()"]
            lines.append(f"outputs['p{k}_x0'] = x0.d.copy()")
        elif chance(0.7):
            lines.append(f"{pick(leaves)}.d = r.randn(2, 3)")
    text = "\n".join(lines)
    if dynamic:
        body = "\n".join("    " + line for line in lines)
        text = f"with nn.auto_forward():\n{body}"
    return text
