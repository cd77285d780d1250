# SPDX-License-Identifier: Apache-2.0
"""Seconds of define-by-run steps that hardly ever take the same path, from a cold start.

    python benchmarks/unseen_paths.py [--only loop-16,branches-64] [--steps 1000] [--json FILE]

A loop of one layer with 2 to 30 rounds, another number in each step; six places where one of two
layers is drawn; and a loop that draws in each round, so no path ever comes again. All with backward
and an update by Adam, 16 samples; nnl in dynamic mode, co-executed, and PyTorch's eager mode, each
in a process of its own, compiling included and importing not.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from cpu import HERE, can_import, last_error, machine, write

BATCH, LAYERS = 16, 6
KINDS = ("loop", "branches", "drawn")
WIDTHS = (16, 64, 256)
WAYS = {"nnl-eager": "nnl dynamic", "nnl-coexecute": "nnl co-executed", "torch": "PyTorch"}
ROWS = [f"{kind}-{width}" for kind in KINDS for width in WIDTHS]


def path_of(kind, steps):
    """For each step the layers and activations that it goes through, as (name, is tanh)."""
    rng = np.random.default_rng(0)
    for _ in range(steps):
        if kind == "branches":
            coins = rng.integers(0, 2, LAYERS)
            yield [(f"{'ab'[c]}{i}", bool(c)) for i, c in enumerate(coins)]
        else:
            coins = rng.integers(0, 2, rng.integers(2, 31)) * (kind == "drawn")
            yield [("ab"[c], not c) for c in coins]


def names_of(kind):
    if kind == "branches":
        return [f"{c}{i}" for c in "ab" for i in range(LAYERS)]
    return ["a", "b"][: 1 + (kind == "drawn")]


def loss_of_branches(x, path, layer, tanh, relu, mean):
    """Written out: each place has lines of its own."""
    (n0, c0), (n1, c1), (n2, c2), (n3, c3), (n4, c4), (n5, c5) = path
    h = tanh(layer(x, n0)) if c0 else relu(layer(x, n0))
    h = tanh(layer(h, n1)) if c1 else relu(layer(h, n1))
    h = tanh(layer(h, n2)) if c2 else relu(layer(h, n2))
    h = tanh(layer(h, n3)) if c3 else relu(layer(h, n3))
    h = tanh(layer(h, n4)) if c4 else relu(layer(h, n4))
    h = tanh(layer(h, n5)) if c5 else relu(layer(h, n5))
    return mean((h - x) ** 2)


def loss_of_loop(x, path, layer, tanh, relu, mean):
    h = x
    for name, is_tanh in path:
        h = tanh(layer(h, name)) if is_tanh else relu(layer(h, name))
    return mean((h - x) ** 2)


def measure(kind, width, way, steps):
    """Seconds, those of processors, and what the report says."""
    loss_of = loss_of_branches if kind == "branches" else loss_of_loop
    data = np.random.default_rng(1).normal(size=(8, BATCH, width)).astype(np.float32)
    step, xs, report = (torch_step if way == "torch" else nnl_step)(kind, width, way, loss_of, data)
    paths = list(path_of(kind, steps))
    start, began = time.perf_counter(), time.process_time()
    for k, path in enumerate(paths):
        loss = step(xs[k % len(xs)], path)
    loss = float(loss.detach() if way == "torch" else loss.d)
    seconds, busy = time.perf_counter() - start, time.process_time() - began
    return {"value": seconds, "processor": round(busy, 3), "loss": loss, **report()}


def nnl_step(kind, width, way, loss_of, data):
    import nnl as nn
    import nnl.functions as F
    import nnl.parametric_functions as PF
    import nnl.solvers as S

    def layer(h, name):
        return PF.affine(h, width, name=name)

    xs = [nn.Variable.from_numpy_array(a) for a in data]
    nn.set_auto_forward(True)
    for name in names_of(kind):
        layer(xs[0], name)
    solver = S.Adam(1e-3)
    solver.set_parameters(nn.get_parameters())

    def step(x, path):
        loss = loss_of(x, path, layer, F.tanh, F.relu, F.mean)
        solver.zero_grad()
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

    def step(x, path):
        loss = loss_of(x, path, lambda h, n: layers[n](h), torch.tanh, torch.relu, torch.mean)
        adam.zero_grad()
        loss.backward()
        adam.step()
        return loss

    return step, [torch.from_numpy(a) for a in data], dict


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help=f"rows, with commas: {', '.join(ROWS)}")
    parser.add_argument("--ways", help=f"ways, with commas: {', '.join(WAYS)}")
    parser.add_argument("--steps", type=int, default=1000)
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
        for way in ways:
            command = [sys.executable, str(HERE / "unseen_paths.py"), "--one", row, way]
            done = subprocess.run(
                [*command, "--steps", str(args.steps)], capture_output=True, text=True
            )
            if done.returncode:
                report["rows"][row][way] = {"error": last_error(done.stderr, done.returncode)}
                print(f"  {WAYS[way]:16} not available: {report['rows'][row][way]['error']}")
                continue
            found = report["rows"][row][way] = json.loads(done.stdout.splitlines()[-1])
            first = report["rows"][row][ways[0]].get("value", found["value"])
            more = {k: v for k, v in found.items() if k not in ("value", "loss")}
            print(f"  {WAYS[way]:16}{found['value']:9.3f}  {found['value'] / first:5.2f} x  {more}")
            sys.stdout.flush()
        if args.json:
            write(args.json, report)


if __name__ == "__main__":
    main()
