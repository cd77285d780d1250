# SPDX-License-Identifier: Apache-2.0
"""Seconds of define-by-run steps that hardly ever take the same path, from a cold start.

    python benchmarks/unseen_paths.py [--only loop-16,tree-64] [--steps 1000] [--rounds 1]

A loop of one layer with 2 to 30 rounds, another number in each step; six places where one of two
layers is drawn; a loop that draws in each round, so no path ever comes again; a tree of random
depth, whose halves are evaluated by recursion; three batches whose gradients are added before the
update; and chunks of a sequence, of 2 to 12 time steps, with the state carried over. All with
backward and an update by Adam, 16 samples; nnl in dynamic mode, co-executed, and PyTorch's eager
mode, each in a process of its own, by turns of some steps, compiling included and importing not,
nor collecting what that leaves. `--steps 30` is the beginning of a program. Ratios are those of
processor time, medians of the rounds; "worst" is the largest of all from the first to some step.
"""

import argparse
import gc
import json
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import numpy as np
from cpu import HERE, can_import, machine, write

BATCH, LAYERS = 16, 6
TURN = 5  # steps of one way, then of the next
KINDS = ("loop", "branches", "drawn", "tree", "batches", "chunks")
WIDTHS = (16, 64, 256)
WAYS = {"nnl-eager": "nnl dynamic", "nnl-coexecute": "nnl co-executed", "torch": "PyTorch"}
ROWS = [f"{kind}-{width}" for kind in KINDS for width in WIDTHS]


def path_of(kind, steps):
    """For each step the layers and activations that it goes through, as (name, is tanh)."""
    rng = np.random.default_rng(0)
    for _ in range(steps):
        if kind == "tree":
            yield tree_of(rng, 5)
        elif kind == "batches":
            yield [("a", False)] * 2
        elif kind == "chunks":
            yield int(rng.integers(2, 13))
        elif kind == "branches":
            coins = rng.integers(0, 2, LAYERS)
            yield [(f"{'ab'[c]}{i}", bool(c)) for i, c in enumerate(coins)]
        else:
            coins = rng.integers(0, 2, rng.integers(2, 31)) * (kind == "drawn")
            yield [("ab"[c], not c) for c in coins]


def tree_of(rng, depth):
    """None for a leaf, else the two halves."""
    if not depth or rng.random() < 0.3:
        return None
    return tree_of(rng, depth - 1), tree_of(rng, depth - 1)


def names_of(kind):
    if kind == "branches":
        return [f"{c}{i}" for c in "ab" for i in range(LAYERS)]
    return ["a", "b"][: 1 + (kind in ("drawn", "tree", "chunks"))]


def loss_of_branches(net, x, path):
    """Written out: each place has lines of its own."""
    (n0, c0), (n1, c1), (n2, c2), (n3, c3), (n4, c4), (n5, c5) = path
    h = net.tanh(net.layer(x, n0)) if c0 else net.relu(net.layer(x, n0))
    h = net.tanh(net.layer(h, n1)) if c1 else net.relu(net.layer(h, n1))
    h = net.tanh(net.layer(h, n2)) if c2 else net.relu(net.layer(h, n2))
    h = net.tanh(net.layer(h, n3)) if c3 else net.relu(net.layer(h, n3))
    h = net.tanh(net.layer(h, n4)) if c4 else net.relu(net.layer(h, n4))
    h = net.tanh(net.layer(h, n5)) if c5 else net.relu(net.layer(h, n5))
    return net.mean((h - x) ** 2)


def loss_of_loop(net, x, path):
    h = x
    for name, is_tanh in path:
        h = net.tanh(net.layer(h, name)) if is_tanh else net.relu(net.layer(h, name))
    return net.mean((h - x) ** 2)


def loss_of_tree(net, x, tree):
    def node(tree):
        if tree is None:
            return net.relu(net.layer(x, "a"))
        return net.tanh(net.layer(node(tree[0]) + node(tree[1]), "b"))

    return net.mean((node(tree) - x) ** 2)


def loss_of_chunk(net, x, length):
    h = x if net.state is None else net.state
    for _ in range(length):
        h = net.tanh(net.layer(x, "a") + net.layer(h, "b"))
    net.state = net.detached(h)
    return net.mean((h - x) ** 2)


LOSSES = {"branches": loss_of_branches, "tree": loss_of_tree, "chunks": loss_of_chunk}


def measure(kind, width, way, steps):
    """Seconds, those of processors, and what the report says."""
    loss_of = LOSSES.get(kind, loss_of_loop)
    data = np.random.default_rng(1).normal(size=(8, BATCH, width)).astype(np.float32)
    step, xs, report = (torch_step if way == "torch" else nnl_step)(kind, width, way, loss_of, data)
    paths = list(path_of(kind, steps))
    several = 3 if kind == "batches" else 1
    gc.collect()  # or it is done in some step, in either way
    start, began, ends = time.perf_counter(), time.process_time(), []
    for k, path in enumerate(paths):
        if k % TURN == 0:
            before, paused = time.perf_counter(), time.process_time()
            print(flush=True)
            sys.stdin.readline()
            start += time.perf_counter() - before
            began += time.process_time() - paused
        loss = step([xs[(several * k + i) % len(xs)] for i in range(several)], path)
        ends.append(time.process_time() - began)
    loss = float(loss.detach() if way == "torch" else loss.d)
    ends[-1] = time.process_time() - began
    seconds = time.perf_counter() - start
    return {"value": seconds, "processor": ends, "loss": loss, **report()}


def nnl_step(kind, width, way, loss_of, data):
    import nnl as nn
    import nnl.coexec  # in all ways: it imports what makes plans
    import nnl.functions as F
    import nnl.parametric_functions as PF
    import nnl.solvers as S

    def layer(h, name):
        return PF.affine(h, width, name=name)

    def detached(h):
        return h.get_unlinked_variable(need_grad=False)

    xs = [nn.Variable.from_numpy_array(a) for a in data]
    nn.set_auto_forward(True)
    for name in names_of(kind):
        layer(xs[0], name)
    solver = S.Adam(1e-3)
    solver.set_parameters(nn.get_parameters())
    net = SimpleNamespace(
        layer=layer, tanh=F.tanh, relu=F.relu, mean=F.mean, detached=detached, state=None
    )

    def step(xs, path):
        solver.zero_grad()
        for x in xs:
            loss = loss_of(net, x, path)
            loss.backward(clear_buffer=True)
        solver.update()
        return loss

    if way == "nnl-eager":
        return step, xs, dict
    run = nn.coexecute(step)

    def report():
        found = run.report()
        names = ("traces", "plans", "block_plans", "left")
        return {n: getattr(found, n) for n in names} | {"fallbacks": len(found.fallbacks)}

    return run, xs, report


def torch_step(kind, width, way, loss_of, data):
    import torch

    layers = {name: torch.nn.Linear(width, width) for name in names_of(kind)}
    adam = torch.optim.Adam([p for layer in layers.values() for p in layer.parameters()], 1e-3)
    net = SimpleNamespace(
        layer=lambda h, name: layers[name](h), tanh=torch.tanh, relu=torch.relu,
        mean=torch.mean, detached=torch.Tensor.detach, state=None,
    )  # fmt: skip

    def step(xs, path):
        adam.zero_grad()
        for x in xs:
            loss = loss_of(net, x, path)
            loss.backward()
        adam.step()
        return loss

    return step, [torch.from_numpy(a) for a in data], dict


def by_turns(row, ways, steps):
    """What processes of their own measure, which take turns: for each way a dictionary."""
    found, running = [{} for _ in ways], {}
    with ExitStack() as stack:
        for at, way in enumerate(ways):
            command = [sys.executable, str(HERE / "unseen_paths.py"), "--one", row, way]
            command += ["--steps", str(steps)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            process = running[at] = subprocess.Popen(command, **pipes, text=True)
            stack.callback(process.kill)
            process.stdout.readline()  # it has begun
        while running:
            for at, process in list(running.items()):
                with suppress(BrokenPipeError):
                    process.stdin.write("\n")
                    process.stdin.flush()
                said = process.stdout.readline()
                if said == "\n":
                    continue
                del running[at]
                found[at] = json.loads(said) if said else {"error": f"ended with {process.wait()}"}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help=f"rows, with commas: {', '.join(ROWS)}")
    parser.add_argument("--ways", help=f"ways, with commas: {', '.join(WAYS)}")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=1, help="the ways take turns in each")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        kind, width = args.one[0].split("-")
        print(json.dumps(measure(kind, int(width), args.one[1], args.steps)))
        return
    rows = [r for r in ROWS if not args.only or r in args.only.split(",")]
    ways = [w for w in WAYS if not args.ways or w in args.ways.split(",")]
    if not can_import("torch"):
        ways = [w for w in ways if w != "torch"]
    report = {"date": time.strftime("%Y-%m-%d %H:%M"), "machine": machine(), "steps": args.steps}
    report["rows"] = {row: {} for row in rows}
    for row in rows:
        print(f"\n{row}, s for {args.steps} steps from a cold start")
        done = [by_turns(row, ways, args.steps) for _ in range(args.rounds)]
        for at, way in enumerate(ways):
            found = report["rows"][row][way] = done[0][at]
            if "error" in found:
                print(f"  {WAYS[way]:16} not available: {found['error']}")
                continue
            rounds = [r for r in done if not any("error" in r[i] for i in (0, at))]
            found["value"] = median([r[at]["value"] for r in rounds])
            pairs = [zip(r[at]["processor"], r[0]["processor"], strict=True) for r in rounds]
            ratios = [median(r) for r in zip(*[[a / b for a, b in p] for p in pairs], strict=True)]
            found["ratio"], found["worst"] = ratios[-1], max(ratios)
            shown = (
                f"{ratios[-1]:5.2f} x  worst {max(ratios):.2f} x at {ratios.index(max(ratios)) + 1}"
            )
            not_shown = ("value", "loss", "processor", "ratio", "worst")
            more = {k: v for k, v in found.items() if k not in not_shown}
            print(f"  {WAYS[way]:16}{found['value']:9.3f}  {shown}  {more}")
            sys.stdout.flush()
        if args.json:
            write(args.json, report)


if __name__ == "__main__":
    main()
