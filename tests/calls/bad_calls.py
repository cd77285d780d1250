# SPDX-License-Identifier: Apache-2.0
"""Spoils calls that work, and judges what comes of it.

Run it as a module to see what the calls of some seeds do: `python -m tests.calls.bad_calls 0 500`.
Every call has a seed of its own; a child process runs them with bounded memory and time, so that
one that crashes, hangs or takes too much memory is found and named.
"""

from __future__ import annotations

import json
import math
import resource
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

import nnl as nn
import nnl.functions as F
from tests.calls.clear_text import unclear
from tests.calls.good_calls import Call, Maker, array, makers, variable

MEMORY = 3 << 30  # bytes of address space above what the process has when it starts
SECONDS = 10  # of CPU for one call
CONTEXTS = ["cpu:float", "cpu:float", "numpy:float", "cpu:bfloat16", "cpu:double"]

NUMBERS: list[Any] = [
    0, -1, 1, 2, 3, 7, 2**31, 2**63, 10**18, -(2**31), -(2**63), 0.5, -0.5, 1.0, 1e300, 1e-300,
    math.nan, math.inf, -math.inf, True, np.float32(2.5), np.int64(3), 1j,
]  # fmt: skip


class Nothing:
    """An object that is of no use to any function."""

    def __repr__(self) -> str:
        return "Nothing()"


def others() -> list[Any]:
    import torch

    return [
        None, "bad", "", b"bad", [], (), {}, {1}, [1], (2, 3), [[1], [2, 3]], (1.5, 2), (None,),
        ("a", "b"), (10**18, 10**18), (2**63,), (-1, -1), (0, 0), [math.nan], Nothing(),
        np.ones((2, 3), np.float32), np.array(3), np.array(["a"]), np.array([None]),
        np.array([1j]), np.ones(3, bool), np.zeros((0, 3)), torch.ones(2, 3),
        torch.ones(2).double(), nn.Context(), range(3), slice(2), Ellipsis,
    ]  # fmt: skip


def arrays(like: Any, rng: np.random.Generator) -> Any:
    """A Variable or NdArray with another shape, type or value than `like`."""
    shape, a = list(like.shape), np.asarray(like.d if isinstance(like, nn.Variable) else like.data)
    make = variable if isinstance(like, nn.Variable) else array
    kind = int(rng.integers(10))
    if kind < 4:
        k = int(rng.integers(max(1, len(shape))))
        if kind == 0:
            shape.insert(k, int(rng.integers(0, 4)))
        elif shape:
            changed = {1: [], 2: [0], 3: [max(0, shape[k] + int(rng.integers(-1, 3)))]}[kind]
            shape[k : k + 1] = changed
        return make(*shape, dtype=a.dtype.name)
    if kind == 4:
        return make(*(int(n) for n in rng.integers(0, 4, int(rng.integers(0, 7)))))
    if kind == 5:
        return make(*shape, dtype=str(rng.choice(["int32", "uint8", "float64", "bool", "float16"])))
    value = a.copy()
    special = [math.nan, math.inf, -math.inf, 1e30, -1e30, -1.0, 0.0]
    if value.dtype.kind != "f":
        special = [-1, 2**31 - 1, -(2**31), 10**18 if value.dtype.itemsize == 8 else 99, 0]
    with np.errstate(all="ignore"):
        value[rng.random(value.shape) < 0.5] = np.array(rng.choice(special)).astype(value.dtype)
    return type(like).from_numpy_array(value)


def spoilt(value: Any, rng: np.random.Generator) -> Any:
    """Something else than `value`, often of a kind that looks like it."""
    near = rng.random() < 0.6
    if isinstance(value, (nn.Variable, nn.NdArray)) and near:
        return arrays(value, rng)
    if isinstance(value, (tuple, list)) and value and near:
        items = list(value)
        k = int(rng.integers(len(items)))
        what = int(rng.integers(6))
        if what == 0:
            del items[k]
        elif what == 1:
            items.insert(k, items[k])
        elif what == 2:
            return value[0]
        else:
            items[k] = spoilt(items[k], rng)
        return type(value)(items)
    pool = NUMBERS if rng.random() < 0.5 else others()
    return pool[int(rng.integers(len(pool)))]


def spoil(call: Call, rng: np.random.Generator) -> str:
    """Change the arguments of a call in one place, or in two; returns what was done."""
    done = []
    for _ in range(2 if rng.random() < 0.15 else 1):
        places: list[Any] = [*range(len(call.args)), *call.kw]
        names = call.arguments
        free = [n for n in names if n not in call.kw and n not in ("args", "kw", "kwargs")]
        free = free[len(call.args) :]
        what = rng.random()
        if call.syntax:
            call.args[0] = spoilt(call.args[0], rng)
            done.append("0")
        elif what < 0.06:
            call.kw["no_such_argument"] = 1
            done.append("unknown argument")
        elif what < 0.09:
            call.args += [1] * 20
            done.append("20 arguments more")
        elif what < 0.15 and places:
            where = places[int(rng.integers(len(places)))]
            del (call.args if isinstance(where, int) else call.kw)[where]
            done.append(f"without {where}")
        elif what < 0.35 and free:
            name = str(rng.choice(free))
            if name == "outputs" and rng.random() < 0.9:
                continue  # every function has it
            call.kw[name] = spoilt(1, rng)
            done.append(name)
        elif places:
            where = places[int(rng.integers(len(places)))]
            given: Any = call.args if isinstance(where, int) else call.kw
            given[where] = spoilt(given[where], rng)
            done.append(str(where))
    return ", ".join(done)


def text_of(value: Any) -> str:
    if isinstance(value, (nn.Variable, nn.NdArray)):
        make = "variable" if isinstance(value, nn.Variable) else "array"
        dtype = value.data.spec.dtype.name if make == "variable" else value.spec.dtype.name
        return f"{make}({', '.join(map(str, value.shape))}, dtype={dtype!r})"
    if isinstance(value, (tuple, list)):
        inner = ", ".join(text_of(v) for v in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner},)"
    return " ".join(repr(value).split())[:200]


def program(call: Call) -> str:
    kw = [f"{k}={text_of(v)}" for k, v in call.kw.items()]
    return f"{call.label}({', '.join([text_of(v) for v in call.args] + kw)})"


def run(call: Call, dynamic: bool) -> None:
    """Make the call, and compute and differentiate what it returns."""
    with nn.auto_forward(dynamic):
        y = call.function(*call.args, **call.kw)
        ys = y if isinstance(y, (tuple, list)) else (y,)
        ys = [v for v in ys if isinstance(v, nn.Variable)]
        if ys and not dynamic:
            nn.forward_all(ys)
        for v in ys:
            v.data.read("host")
        ends = [F.sum(v) for v in ys if v.parent is not None and v.need_grad]
        if ends:
            loss = F.add_n(*ends)
            loss.forward()
            loss.backward(clear_buffer=True)


class Judge:
    """Makes the call of a seed, and says what is wrong with what it does."""

    def __init__(self) -> None:
        self.makers: list[tuple[str, Maker]] = list(makers().items())
        self.errors = 0

    def call(self, seed: int) -> tuple[Call, str, str, bool]:
        """The bad call of a seed, what was done to it, its context, and whether it is dynamic."""
        rng = np.random.default_rng([seed, 12])
        _, make = self.makers[int(rng.integers(len(self.makers)))]
        context = str(rng.choice(CONTEXTS))
        dynamic = bool(rng.random() < 0.5)
        call = make(rng)
        return call, spoil(call, rng), context, dynamic

    def check(self, seed: int) -> str:
        """Empty if the call of this seed works or raises an error with a clear text."""
        nn.clear_parameters()
        call, what, context, dynamic = self.call(seed)
        last = call.label.removesuffix(" =").split(".")[-1].split()[-1]
        names = [last, call.label, *call.others]
        where = (
            f"{program(call)}  # spoilt: {what}; {context}, {'dynamic' if dynamic else 'static'}"
        )
        values = [*call.args, *call.kw.values()]
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            with nn.context_scope(nn.Context([context])):
                run(call, dynamic)
        except TimeoutError:
            return f"takes more than {SECONDS} s: {where}"
        except Exception as e:  # noqa: BLE001  (whatever it is, it is judged)
            self.errors += 1
            why = unclear(e, names, [*call.arguments, *call.kw], values)
            kind = type(e).__name__
            return f"{why}: {where}\n    {kind}: {' '.join(str(e).split())[:300]}" if why else ""
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        return ""


def stop(*_: Any) -> None:
    raise TimeoutError


def child(first: int, last: int) -> None:
    """Check calls; a line for each that starts, and one for what was found."""
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    signal.signal(signal.SIGPROF, stop)
    judge = Judge()
    with open("/proc/self/statm") as f:
        used = int(f.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    for seed in range(first, last):
        print(seed, flush=True)
        found = judge.check(seed)
        if found:
            print(json.dumps(found), flush=True)
    print(f"done {judge.errors}", flush=True)


def findings(first: int, last: int) -> Iterator[tuple[int, str]]:
    """(seed, what is wrong) of the bad calls of these seeds; last comes (-1, number of errors)."""
    errors = 0
    while first < last:
        command = [sys.executable, "-m", "tests.calls.bad_calls", "child", str(first), str(last)]
        ran = subprocess.run(command, capture_output=True, text=True)
        seed = first - 1
        for line in ran.stdout.splitlines():
            if line.startswith('"'):
                yield seed, json.loads(line)
            elif line.startswith("done"):
                errors += int(line.split()[1])
                first = last
            else:
                seed = int(line)
        if first < last:
            if seed < first:
                raise RuntimeError(ran.stderr)
            call, *_ = Judge().call(seed)
            died = f"exit {ran.returncode}: {ran.stderr[-300:]}"
            yield seed, f"ends the process: {program(call)}\n    {died}"
            first = seed + 1
    yield -1, str(errors)


if __name__ == "__main__":
    if sys.argv[1] == "child":
        child(int(sys.argv[2]), int(sys.argv[3]))
    else:
        for seed, found in findings(int(sys.argv[1]), int(sys.argv[2])):
            print(f"{seed}: {found}", flush=True)
