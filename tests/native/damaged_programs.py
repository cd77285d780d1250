# SPDX-License-Identifier: Apache-2.0
"""Damages programs as what they mean and runs them in C++: a program of its own.

    python -m tests.native.damaged_programs COUNT SEED FOLDER [RUNNER]

Bytes at random rarely become another shape, attribute, operand or type that is written well; these
always do. RUNNER is cpp/tests/test_program_check of a build with sanitizers, or else this process
runs the files. A run ends well or in one error; everything else is printed with its file, which
stays in FOLDER.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import nnl as nn
import nnl.solvers as S
from nnl.core.parameters import safetensors
from nnl.ext.library import DTYPES
from nnl.graph.program.sizes import OPERATORS as SIGNS
from tests.graph import test_switch, test_while_loop
from tests.graph.open_networks import Network
from tests.graph.open_networks import steps as steps_of_a_loop
from tests.graph.saved import STEPS, saved_sample, training_step
from tests.test_derived import CASES, Case

BATCH = 100  # files for one process
NUMBERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 4, 7, 16, 2**31, 2**40, 2**62, 2**63 - 1)
REALS: tuple[Any, ...] = (0.0, -1.0, 0.5, 2.0, 1e30, {"float": "nan"}, {"float": "inf"})
OPERATORS = tuple(SIGNS)
Json = Any


class Damage:
    """Changes to one program, each of which leaves it written well."""

    def __init__(self, program: Json, rng: np.random.Generator) -> None:
        self.program, self.rng = program, rng
        self.values, self.steps = program["values"], list(every_step(program["steps"]))

    def pick(self, items: Any) -> Any:
        items = list(items)
        return items[int(self.rng.integers(len(items)))]

    def once(self) -> None:
        changes = [self.shape, self.type, self.place, self.operand, self.attribute, self.code]
        if any("open" in s for s in self.steps) or "dims" in self.program:
            changes += 4 * [self.size]
        self.pick(changes)()

    def shape(self) -> None:
        old = list(self.pick(self.values)[1])
        new = self.other_list(old, (0, 1, 2, 3, 5, 8, 16, 17))
        everywhere = self.rng.random() < 0.7
        for holder, key in self.lists() if everywhere else [(self.pick(self.values), 1)]:
            if holder[key] == old:
                holder[key] = list(new)

    def type(self) -> None:
        old, new = self.pick(self.values)[0], self.pick(DTYPES)
        for v in self.values if self.rng.random() < 0.5 else [self.pick(self.values)]:
            if v[0] == old:
                v[0] = new

    def place(self) -> None:
        v = self.pick(self.values)
        if len(v) < 3:
            v.append({})
        key = self.pick(("root", "order", "role", "copies"))
        v[2][key] = {
            "root": self.number(),
            "copies": self.number(),
            "order": self.pick(("host", "channels_last", "tiled")),
            "role": self.pick(("input", "state", "intermediate")),
        }[key]
        v[2].setdefault("name", f"z{self.rng.integers(99)}")

    def operand(self) -> None:
        step = self.pick(self.steps)
        kind = self.pick(("ins", "ins", "outs", "view", "writes", "op"))
        if kind == "view":
            step["view"] = not step.get("view", False)
        elif kind == "writes":
            step["writes"] = [int(self.rng.integers(3))]
        elif kind == "op":
            step["op"] = self.pick(self.program["ops"])
        else:
            numbers = range(len(self.values) + 1 if kind == "outs" else len(self.values) + 2)
            step[kind] = self.other_list(step[kind], numbers)

    def attribute(self) -> None:
        step = self.pick(self.steps)
        known = {**self.program["ops"].get(step["op"], {}), **step.get("attrs", {})}
        if known:
            name = self.pick(known)
            step.setdefault("attrs", {})[name] = self.other(known[name])

    def code(self) -> None:
        own = [s["elementwise"] for s in self.steps if "elementwise" in s]
        own += [s["attrs"] for s in self.steps if "code" in s.get("attrs", {})]
        if own:
            program = self.pick(own)
            key = self.pick(set(program) - {"op"})
            program[key] = self.other(program[key])

    def size(self) -> None:
        """Of an open size, or of an expression of them."""
        holders = [self.program.get("dims", {}), *[s["open"] for s in self.steps if "open" in s]]
        holders += [v[2]["sizes"] for v in self.values if len(v) > 2 and "sizes" in v[2]]
        leaves = [leaf for holder in holders for leaf in every_leaf(holder)]
        if not leaves:
            return
        holder, key = self.pick(leaves)
        old, dims = holder[key], [*self.program.get("dims", {}), "nothing"]
        if self.rng.random() < 0.3:
            holder[key] = [self.pick(OPERATORS), old, self.pick((*dims, *NUMBERS, [1, 0]))]
        elif isinstance(old, str):
            holder[key] = self.pick((*OPERATORS, *dims))
        else:
            holder[key] = self.pick((*NUMBERS, *dims, None, 1000, 10**6))

    def number(self) -> int:
        return int(self.rng.integers(1, len(self.values) + 1))

    def other(self, old: Json) -> Json:
        if isinstance(old, bool):
            return not old
        if isinstance(old, int):
            return self.pick((*NUMBERS, old + 1, old - 1))
        if isinstance(old, list):
            return self.other_list(old, (*NUMBERS, *REALS) if self.rng.random() < 0.2 else NUMBERS)
        if isinstance(old, str):
            words = {a for op in self.program["ops"].values() for a in op.values()
                     if isinstance(a, str)}  # fmt: skip
            return self.pick((*words, "nearest", "linear", "reflect", "repeat", "relu", "sum", ""))
        return self.pick((*REALS, None, 3))

    def other_list(self, old: Json, items: Any) -> Json:
        new, kind = list(old), int(self.rng.integers(5))
        at = int(self.rng.integers(len(new) + 1))
        if kind == 0 or not new:
            new.insert(at, self.pick(items))
        elif kind == 1:
            del new[at % len(new)]
        else:
            new[at % len(new)] = self.pick(items)
        return new

    def lists(self) -> Iterator[tuple[Any, Any]]:
        """Where shapes stand, and what else is a list of numbers."""
        yield from ((v, 1) for v in self.values)
        for step in self.steps:
            for holder in (step.get("attrs", {}), step.get("elementwise", {})):
                yield from ((holder, k) for k, v in holder.items() if isinstance(v, list))
            shapes = step.get("elementwise", {}).get("shapes", [])
            yield from ((shapes, k) for k in range(len(shapes)))


def every_step(steps: Json) -> Iterator[Json]:
    for step in steps:
        yield step
        yield from every_step(step.get("parts", ()))


def every_leaf(tree: Json) -> Iterator[tuple[Any, Any]]:
    """(dict or list, key) of each number and word."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, (dict, list)):
            yield from every_leaf(value)
        else:
            yield tree, key


def every_program(program: Json) -> Iterator[Json]:
    """A program, and those inside its steps."""
    yield program
    for step in every_step(program["steps"]):
        for value in step.get("attrs", {}).values():
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, dict) and "program" in one:
                    yield from every_program(one["program"])


Good = Callable[[], tuple[Json, dict[str, Any]]]


def good_programs(folder: Path) -> list[Good]:
    """What makes (programs, arrays): of samples of all ops that C++ has, and of training steps."""
    path = folder / "good.nnlp"

    def sample(op: Any, i: int) -> None:
        saved_sample(Case(op, i, np.float32), path)

    def step(make: Any) -> None:
        network, values = make()
        step = training_step(network, S.Adam(0.001))
        step(**{k: nn.Variable.from_numpy_array(v) for k, v in values.items()})
        step.save(path)
        nn.clear_parameters()

    def branches() -> None:
        net = test_switch.Net()
        save(net.chosen(), {"x": net.x, "i": net.i})

    def loop() -> None:
        net = test_while_loop.Net()
        save(net.loop(), {"x": net.x, "limit": net.limit, "odd": net.start[0]})

    def save(ys: Any, inputs: Any) -> None:
        nn.save_program(path, {f"y{k}": y for k, y in enumerate(ys)}, inputs)

    def read(write: Callable[[], None]) -> tuple[Json, dict[str, Any]]:
        write()
        data = np.fromfile(path, np.uint8)
        path.unlink()
        entries, _ = safetensors.read_header(data, str(path))
        arrays = {
            k: data[e.begin : e.end].view(e.dtype).reshape(e.shape) for k, e in entries.items()
        }
        return json.loads(arrays.pop("nnl.program").tobytes()), arrays

    def opened(seed: int) -> None:
        net = Network(seed)
        x = nn.Variable(net.shape(np.random.default_rng(seed)))
        nn.save_program(path, net, {"x": x}, open={"x": net.axes})
        nn.clear_parameters()

    names = set(nn.ext.native.library().rule_names())
    samples = [partial(sample, *p.values) for p in CASES if p.values[0].name in names]
    steps = [partial(step, make) for make in STEPS.values()]
    writers = [(w, 1) for w in samples] + [(w, 10) for w in steps] + [(branches, 20), (loop, 20)]
    nets = [k for k in range(60) if not any(f is steps_of_a_loop for f, _ in Network(k).layers)]
    writers += [
        (partial(opened, k), 4) for k in nets
    ]  # another limit may let a loop go on for ever
    return [good for w, n in writers for good in [cache(partial(read, w))] * n]


def write(path: Path, good: Good, rng: np.random.Generator) -> None:
    """A damaged copy, without a checksum. What is stored often becomes an input, whose shape no
    array contradicts."""
    data, arrays = good()
    data = json.loads(json.dumps(data))
    for program in data["programs"].values():
        programs = list(every_program(program))
        if rng.random() < 0.8:
            for k, value in enumerate(program["values"]):
                if len(value) > 2 and value[2].get("role") in ("parameter", "state"):
                    value[2].update(role="input", name=f"v{k}")
        for _ in range(int(rng.integers(1, 4))):
            Damage(programs[int(rng.integers(len(programs)))], rng).once()
    text = np.frombuffer(json.dumps(data).encode(), np.uint8)
    meta = {"format": "nnlp", "version": str(data["version"])}
    safetensors.save(path, {**arrays, "nnl.program": text}, meta)


def complaints(count: int, seed: int, folder: Path, runner: str | None) -> Iterator[str]:
    """What was not as it should be, and at the end how many ran."""
    good, ran = good_programs(folder), 0
    for first in range(0, count, BATCH):
        paths = []
        for i in range(first, min(first + BATCH, count)):
            rng = np.random.default_rng((seed, i))
            paths.append(folder / f"{i}.nnlp")
            write(paths[-1], good[int(rng.integers(len(good)))], rng)
        while paths:
            command = [runner] if runner else [sys.executable, __file__, "run"]
            done = subprocess.run(
                [*command, *map(str, paths)], capture_output=True, text=True, timeout=600
            )
            lines = done.stdout.splitlines()
            ran += sum(line.endswith(" ran") for line in lines)
            kept = set()
            if done.returncode:
                kept.add(len(lines) - 1)
                yield f"{lines[-1] if lines else '?'}: {done.returncode}: {done.stderr[:3000]}"
            elif done.stderr:
                yield f"{done.stderr[:3000]}"
            for k, path in enumerate(paths[: len(lines)]):
                if k not in kept:
                    path.unlink()
            paths = paths[len(lines) :] if lines else []
    yield f"{ran} of {count} ran"


def run(paths: list[str]) -> None:
    """What the C++ program does, in this process."""
    lib = nn.ext.native.library()
    for path in paths:
        print(path, end=" ", flush=True)
        try:
            lib.Model(path).run({})
            print("ran")
        except (ValueError, MemoryError) as e:
            print("refused:", str(e).replace("\n", " "))


if __name__ == "__main__":
    if sys.argv[1] == "run":
        run(sys.argv[2:])
    else:
        count, seed, folder, *runner = sys.argv[1:]
        os.makedirs(folder, exist_ok=True)
        for line in complaints(int(count), int(seed), Path(folder), (*runner, None)[0]):
            print(line, flush=True)
