# SPDX-License-Identifier: Apache-2.0
"""What co-execution makes of define-by-run programs, beside eager, static and compiled ones.

    python benchmarks/coexecution.py [--only step-mlp,sdpoint] [--steps 1000] [--limit 300]
        [--json FILE]

Three tables. Training steps of six networks: medians of 30 steps, the ways taking turns in
processes of their own, and the same of processor time, which the targets are of. The five programs
of examples/programs that are hard to compile: seconds of 1,000 steps from a cold start, compiling
included, and importing not, nnl's ways by turns of ten steps; what PyTorch has not done within the
limit says how many steps it has come to. The other five: medians, by turns as well. A way that
there is not here, or that fails, says why.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from cpu import CACHE, HERE, NotAvailable, can_import, last_error, machine, start, write
from cpu_rows import STEPS, WAYS
from tqdm import tqdm

ROUNDS, STEPS_A_ROUND, WARM, TURN = 5, 30, 20, 10
DIFFICULT = ("dropblock", "sdpoint", "bert_cls", "music_transformer", "faster_rcnn")
OTHERS = ("resnet50", "bert_qa", "yolov3", "dcgan", "gpt2")
MODES = {"nnl-eager": "eager", "nnl-coexecute": "coexecute"}
PROGRAM = """
import importlib, json, statistics, sys, time
sys.path.insert(0, sys.argv[1])
import common
name, mode, steps, every, warm, turn = sys.argv[2:4] + [int(n) for n in sys.argv[4:]]
waited = 0

class Turns(importlib.import_module(name).Program):
    def batches(self, rng):
        global waited
        for i, batch in enumerate(super().batches(rng)):
            if i % turn == 0 and i < steps:
                begin = time.perf_counter()
                print(flush=True)
                sys.stdin.readline()
                waited += time.perf_counter() - begin
            yield batch

run = common.train(Turns, mode, steps, every=every)
found = {"steps": steps, "ms": statistics.median(run.times[warm:]) * 1e3}
found["seconds"] = run.seconds - waited
if mode == "coexecute":
    report = run.step.report()
    found |= {"traces": report.traces, "fallbacks": len(report.fallbacks)}
print(json.dumps(found))
"""


def step_row(name, ways, args):
    """way -> {"value": ms, "busy": ms of processors} or {"error"} of a training step."""
    medians, busy = {}, {}
    with ExitStack() as stack:
        workers, errors = start(stack, name, [w for w in STEPS[name].engines if w in ways], args)
        for _ in tqdm(range(args.rounds), desc=name, leave=False, disable=None):
            for way, (worker, _) in workers.items():
                if way in errors:
                    continue
                try:
                    answer = worker.ask(steps=STEPS_A_ROUND)
                except NotAvailable as e:
                    errors[way] = str(e)
                else:
                    medians.setdefault(way, []).append(statistics.median(answer["times"]) * 1e3)
                    busy.setdefault(way, []).append(answer["busy"] * 1e3)
    result = {
        way: {"value": statistics.median(m), "busy": statistics.median(busy[way]), "rounds": m}
        for way, m in medians.items()
    }
    return result | {way: {"error": text} for way, text in errors.items()}


def program_rows(name, ways, args):
    """way -> what a program says in it; nnl's ways take turns."""
    found = by_turns(name, [way for way in ways if way in MODES], args)
    return found | {way: torch_row(name, way, args) for way in ways if way not in MODES}


def by_turns(name, ways, args):
    """way -> {"value", ...} or {"error"}, in processes of their own, TURN steps at a time.

    A turn ends with a loss that is read, so nothing that was put off runs in another one's turn.
    """
    steps, every, warm = WARM + args.rounds * STEPS_A_ROUND, 1, WARM
    if name in DIFFICULT:
        steps, every, warm = args.steps, TURN, 0
    command = [sys.executable, "-c", PROGRAM, str(HERE.parent / "examples" / "programs"), name]
    numbers = [str(n) for n in (steps, every, warm, TURN)]
    found, running = {}, {}
    with ExitStack() as stack, tqdm(total=steps, desc=name, leave=False, disable=None) as bar:
        for way in ways:
            errors = stack.enter_context(tempfile.TemporaryFile("w+"))
            process = subprocess.Popen(
                [*command, MODES[way], *numbers],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            stack.callback(process.kill)
            running[way] = process, errors
            process.stdout.readline()  # it has begun
        while running:
            for way, (process, errors) in list(running.items()):
                with suppress(BrokenPipeError):
                    process.stdin.write("\n")
                    process.stdin.flush()
                said = process.stdout.readline()
                if said == "\n":
                    continue
                del running[way]
                errors.seek(0)
                found[way] = (
                    json.loads(said)
                    if said
                    else {"error": last_error(errors.read(), process.wait())}
                )
                if said:
                    found[way]["value"] = found[way]["seconds" if name in DIFFICULT else "ms"]
            bar.update(TURN)
    return found


def torch_row(name, way, args):
    """What one program of PyTorch's says, in a process of its own, or {"error"}."""
    command = [sys.executable, str(HERE / "torch_programs.py"), name, str(args.steps)]
    command += ["--compile"] if way == "torch-compile" else []
    code, said, errors = run_within(args.limit, command)
    if code:
        return {"error": last_error(errors, code)}
    found = json.loads(said[-1]) if said else {"steps": 0}
    return {**found, "value": args.limit if code is None else found["seconds"]}


def run_within(seconds, command):
    """Run a process: (exit status, None if it took longer; lines of stdout; stderr)."""
    with ExitStack() as stack:
        out, errors = (stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2))
        folder = tempfile.TemporaryDirectory(prefix="nnl-benchmark-", ignore_cleanup_errors=True)
        environment = {**os.environ, CACHE: stack.enter_context(folder)}  # compilers start cold
        streams = {"stdout": out, "stderr": errors}
        process = subprocess.Popen(command, **streams, env=environment, start_new_session=True)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # compilers have processes of their own
                process.wait()
        for file in (out, errors):
            file.seek(0)
        return code, out.read().splitlines(), errors.read()


def target_of(name):
    """(way, ratio) that co-execution is to reach, several."""
    if name in STEPS:
        return [STEPS[name].target]
    return [("nnl-eager", 1.0), *([("torch-compile", 0.5)] if name in DIFFICULT else [])]


def print_row(title, unit, name, result, wanted=None):
    """Args: wanted: How many steps a program was to do."""
    print(f"\n{title}, {unit}")
    ours, our_busy = [result.get("nnl-coexecute", {}).get(k) for k in ("value", "busy")]
    stopped = {way for way, r in result.items() if wanted not in (None, r.get("steps"))}
    for way, text in WAYS.items():
        found = result.get(way, {})
        if "value" in found:
            less = "<" if way in stopped else ""
            ratio = f"   co-executed takes {less}{ours / found['value']:.2f} x" if ours else ""
            ratio += f", {our_busy / found['busy']:.2f} x of processors" if "busy" in found else ""
            seen = f"   traces {found['traces']}, fallbacks" if "traces" in found else ""
            seen += f" {found['fallbacks']}" if seen else ""
            seen += f"   stopped after {found['steps']} steps" if less else ""
            print(f"  {text:16}{found['value']:12.4g}{ratio}{seen}")
        elif found:
            print(f"  {text:16} not available: {found['error']}")
    for way, most in target_of(name):
        other = result.get(way, {})
        if ours and "value" in other and "nnl-coexecute" not in stopped:
            at = our_busy / other["busy"] if our_busy else ours / other["value"]
            word = "met" if at <= most else "missed"
            print(f"  wanted <= {most:g} x {WAYS[way]}: {word}")
    sys.stdout.flush()


def main():
    names = (*STEPS, *DIFFICULT, *OTHERS)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help=f"rows, with commas: {', '.join(names)}")
    parser.add_argument("--ways", help=f"ways, with commas: {', '.join(WAYS)}")
    parser.add_argument("--steps", type=int, default=1000, help="of the difficult programs")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of the ways")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds for an answer")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for a program")
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the benchmark")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    args = parser.parse_args()
    if args.only:
        names = [n for n in names if n in args.only.split(",")]
    ways = [w for w in WAYS if not args.ways or w in args.ways.split(",")]
    if not can_import("torch"):
        ways = [w for w in ways if not w.startswith("torch")]
    report = {"date": time.strftime("%Y-%m-%d %H:%M"), "machine": machine()}
    report |= {"steps": args.steps, "rounds": args.rounds, "quick": args.quick, "rows": {}}
    for name in names:
        if name in STEPS:
            title, unit, result = (
                STEPS[name].title,
                "ms a training step",
                step_row(name, ways, args),
            )
        else:
            cold = name in DIFFICULT
            title = name
            unit = f"s for {args.steps} steps from a cold start" if cold else "ms a step"
            able = [w for w in ways if w in MODES or (cold and w != "nnl")]
            result = program_rows(name, able, args)
        report["rows"][name] = result
        cold = name in DIFFICULT
        print_row(title, unit, name, result, args.steps if cold else None)
        if args.json:
            write(args.json, report)


if __name__ == "__main__":
    main()
