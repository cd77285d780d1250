# SPDX-License-Identifier: Apache-2.0
"""Random scripts in NNabla's own API: graphs of several outputs, run in passes that change things.

A script fills `outputs`. The same text is run by NNabla and by nnl. Three kinds write the same
graphs: "static"; "dynamic", where they are made again in every pass under auto_forward; and
"step", where a function of the leaves makes the graph, its gradients and the update: `run(step)`
is the function itself, or what nn.compile and nn.coexecute make of it.

What docs/differences.md names is not written: reading what was cleared, nn.grad beside unlinked
copies and in static graphs that write statistics, unlinked copies of what the same static graph
computes, gradients of those of other results, hooks where flags change.
"""

from __future__ import annotations

from typing import Any

import numpy as np

KINDS = ("static", "dynamic", "step")

# Without F.sort: NNabla permutes its gradient wrongly. The last one is used once, since it writes
# statistics, and NNabla runs functions in another order.
UNARY = (
    "F.sin({})", "F.tanh({})", "F.sigmoid({})", "{} * 0.5 + 1.0", "F.exp({} * 0.3)", "F.relu({})",
    "F.softmax({})", "F.reshape({}, (2, 3))", "F.transpose(F.transpose({}, (1, 0)), (1, 0))",
    "F.leaky_relu({})", "{}.reshape((3, 2)).reshape((2, 3))", "F.swish({})", "F.identity({})",
    "F.cumsum({}, axis=1)", "F.add_scalar({}, 0.3)", "F.relu({}, inplace=True)",
    "F.reshape({}, (2, 3), inplace=False)", "F.elu({}, alpha=0.7)", "F.stack(*F.split({}))",
    "F.mul_scalar({}, 1.5, inplace=True)", "F.batch_normalization({}, *bn, axes=[0], eps=0.1)",
)  # fmt: skip
BINARY = (
    "{} + {}", "{} * {}", "{} - {}", "F.maximum2({}, {})", "F.div2({}, 2.5 + F.sigmoid({}))",
    "F.concatenate({}, {}, axis=0)[1:3]", "F.minimum2({}, {})", "F.add2({}, {}, inplace=True)",
    "F.add_n({0}, {1}, {0})",
)  # fmt: skip
SOLVERS = ("Sgd(0.1)", "Momentum(0.1, 0.9)", "Adam(0.01)", "AdamW(0.01)", "Nesterov(0.1)")

STATISTICS = "bn = [nn.Variable.from_numpy_array(np.full((2, 1), v)) for v in (0.1, 1.2, 0.0, 1.0)]"
# What a hook sees, as a number for each function: sums of what is complete by then.
HOOKS = """
seen = []
def forward_hook(f):
    seen.append(float(f.outputs[0].d.sum()))
def backward_hook(f):
    seen.append(float(f.outputs[0].g.sum()))
"""


class Script:
    """A script that is being written; the same one for the same seed."""

    def __init__(self, seed: int, kind: str) -> None:
        self.rng = np.random.default_rng(seed)
        self.kind = kind
        self.lines = [f"r = np.random.RandomState({seed})"]
        self.leaves = [f"x{i}" for i in range(int(self.rng.integers(1, 4)))]
        self.needing = [x for i, x in enumerate(self.leaves) if i == 0 or self.chance(0.7)]
        self.reaches = {x: {x} & {*self.needing} for x in self.leaves}  # leaves that it depends on
        self.copies = self.second = False  # are there unlinked copies? nn.grad?
        self.hooks = kind == "static" and self.chance(0.15)

    def pick(self, of: Any) -> Any:
        return of[int(self.rng.integers(len(of)))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    # ---- the graph ----

    def graph(self) -> tuple[list[str], list[str]]:
        """Lines that make the graph, and the names of the scalars to run and to differentiate."""
        lines: list[str] = []
        for i in range(int(self.rng.integers(2, 9))):
            self.value(f"v{i}", lines)
        computed = [v for v in self.reaches if v not in self.leaves]
        outs = [computed[-1], *({self.pick(computed)} if self.chance(0.6) else ())]
        for i, y in enumerate(outs):
            leaf = self.pick(self.leaves)
            lines.append(f"y{i} = F.sum({y} * {leaf})")
            self.reaches[f"y{i}"] = self.reaches[y] | self.reaches[leaf]
        ys = [f"y{i}" for i in range(len(outs))]
        reached = sorted(self.reaches[ys[0]])
        writes = self.kind == "static" and any("bn" in line for line in lines)
        if reached and not self.copies and not self.hooks and self.chance(0.15) and not writes:
            self.second = True
            lines.append(f"gs = nn.grad([{ys[0]}], [{', '.join(reached)}])")
            lines.append(f"y{len(ys)} = F.sum(F.tanh(gs[0] * {self.pick(self.leaves)}))")
            ys.append(f"y{len(ys)}")
        return lines, ys

    def value(self, name: str, lines: list[str]) -> None:
        known = [v for v in self.reaches if not v.startswith("y")]
        a, b = self.pick(known), self.pick(known)
        if self.chance(0.1) and (self.kind != "static" or a in self.leaves):
            need = self.chance(0.5) and a in self.leaves
            lines.append(f"{name} = {a}.get_unlinked_variable(need_grad={need})")
            self.reaches[name] = self.reaches[a] & {a} if need else set()
            self.copies = True
            return
        if self.chance(0.6):
            functions = UNARY[: -1 if any("bn" in line for line in lines) else None]
            lines.append(f"{name} = {self.pick(functions).format(a)}")
            self.reaches[name] = self.reaches[a]
        else:
            lines.append(f"{name} = {self.pick(BINARY).format(a, b)}")
            self.reaches[name] = self.reaches[a] | self.reaches[b]
        if self.kind == "static" and self.chance(0.1):
            lines.append(f"{name}.persistent = True")
        if self.chance(0.04) and self.reaches[name]:
            lines.append(f"{name}.need_grad = False")
            self.reaches[name] = set()

    # ---- what is done with it ----

    def write(self) -> str:
        lines = self.lines
        for x in self.leaves:
            lines.append(f"{x} = nn.Variable((2, 3), need_grad={x in self.needing})")
            lines.append(f"{x}.d = r.randn(2, 3)")
        lines.append(STATISTICS)
        build, ys = self.graph()
        solver = self.pick(SOLVERS) if self.chance(0.4) else None
        if solver:
            lines += [f"s = S.{solver}", "s.set_parameters({'x0': x0})"]
        if self.hooks:
            lines += HOOKS.strip().splitlines()
        if self.kind == "static":
            lines += build
        if self.kind == "step":
            self.step(build, ys, solver)
        for k in range(int(self.rng.integers(1, 4)) + (self.kind == "step")):
            if self.kind == "step":
                lines += [f"{', '.join(ys)}, = step({', '.join(self.leaves[1:])})"]
                lines += [f"outputs['p{k}_{y}'] = {y}.d.copy()" for y in ys]
            else:
                self.a_pass(k, build if self.kind == "dynamic" else [], ys)
            lines += [f"outputs['p{k}_g{x}'] = {x}.g.copy()" for x in self.needing]
            lines += [f"outputs['p{k}_bn{i}'] = bn[{i}].d.copy()" for i in (2, 3)]
            if solver:
                if self.kind != "step":
                    lines += ["s.weight_decay(0.01)"] * self.chance(0.3) + ["s.update()"]
                lines.append(f"outputs['p{k}_x0'] = x0.d.copy()")
            if self.chance(0.7):
                lines += self.change()
        text = "\n".join(lines)
        if self.kind == "static":
            return text
        return "with nn.auto_forward():\n" + "\n".join("    " + line for line in lines)

    def a_pass(self, k: int, build: list[str], ys: list[str]) -> None:
        """Forward and backward of every output, with random flags."""
        static = self.kind == "static"
        lines = self.lines
        lines += build
        lines += [f"{x}.grad.zero()" for x in self.leaves if self.chance(0.8) or k == 0]
        flag = self.pick(["", "", "clear_no_need_grad=True"])
        together = len(ys) > 1 and self.chance(0.5)
        hook = "function_post_hook=forward_hook" * self.hooks
        if static and together:
            lines.append(f"nn.forward_all([{', '.join(ys)}], {join(flag, hook)})")
        for j, y in enumerate(ys):
            if static and not together:
                lines.append(f"{y}.forward({join(flag, hook)})")
            lines.append(f"outputs['p{k}_{y}'] = {y}.d.copy()")
            last = j == len(ys) - 1 or (static and not together)  # nobody needs what it clears
            clear = "clear_buffer=True" if self.chance(0.5) and last and not self.hooks else ""
            start = f"grad={self.pick(['1', '0.5', '2.0'])}"
            hook_of_y = "function_pre_hook=backward_hook" * self.hooks
            lines.append(f"{y}.backward({join(start, clear, hook_of_y)})")
        if self.hooks:
            lines += [f"outputs['p{k}_seen'] = np.sort(np.array(seen))", "seen.clear()"]

    def step(self, build: list[str], ys: list[str], solver: str | None) -> None:
        """A function of all leaves but x0, which it trains."""
        body = [*build, *(f"{x}.grad.zero()" for x in self.needing)]
        body += [f"{y}.backward(grad={self.pick(['1', '0.5'])})" for y in ys]
        body += ["s.weight_decay(0.01)"] * (bool(solver) and self.chance(0.3))
        body += ["s.update()"] * bool(solver) + [f"return {', '.join(ys)},"]
        self.lines += [f"def step({', '.join(self.leaves[1:])}):", *("    " + b for b in body)]
        self.lines.append("step = run(step)")

    def change(self) -> list[str]:
        """Something else for the next pass: data, or a flag."""
        x = self.pick(self.leaves)
        ways = [
            f"{x}.d = r.randn(2, 3)",
            f"{x}.d[...] = r.randn(2, 3)",
            f"{x}.data.fill(0.7)",
            f"{x}.data += 0.5",
            f"{x}.data.copy_from({self.pick(self.leaves)}.data)",
            f"{x}.d[1] = 0.25",
            f"{x}.need_grad = False",
        ]
        if x not in self.needing and not self.hooks and self.chance(0.3):
            self.needing.append(x)
            return [f"{x}.need_grad = True"]
        flags = x in self.needing and x != "x0" and not self.second and not self.hooks
        way = self.pick(ways if flags else ways[:-1])
        return [
            way,
            *([f"{x}.need_grad = True"] if "need_grad" in way and self.chance(0.5) else []),
        ]


def join(*parts: str) -> str:
    return ", ".join(p for p in parts if p)


def script(seed: int, kind: str = "static") -> str:
    """The text of a random script of a kind."""
    return Script(seed, kind).write()
