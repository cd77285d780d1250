# SPDX-License-Identifier: Apache-2.0
"""Speed of nnl on the processor, beside every peer that is installed, in one run.

    python benchmarks/cpu.py [--only lenet,chain] [--peers torch,ort] [--quick] [--out FILE]
    python benchmarks/cpu.py --against ../other          # a checkout with its own .venv
    python benchmarks/cpu.py --profile resnet18-train

Peers: PyTorch (eager, channels_last, torch.compile), ONNX Runtime (forward only), and NNabla 1.39
where NNL_INTEROP_PYTHON names the interpreter that has it (`make interop` makes one). Each engine
runs a row in a process of its own, with its own default number of threads. All these processes
stay alive during the row and take turns (A B C, A B C, ...), so that a busy moment of the machine
hits all of them; numbers are medians over all rounds.

In every training row the data are the same; there is no dropout; PyTorch's solvers are the fused
ones; bf16 means autocast in PyTorch and type_config='bfloat16' in nnl.
"""

import argparse
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cpu_rows import ENGINES, OURS, ROWS, STEPS
from tqdm import tqdm

HERE = Path(__file__).resolve().parent
ROUNDS = 9
ROUND_S = 0.4  # of each engine in each round
SETTLE_S = 0.05  # between two engines: threads that still wait for work have gone to sleep
MOST_STEPS = 500
CLOSE_S = 5.0  # for an idle process to end
CACHE = "TORCHINDUCTOR_CACHE_DIR"


OTHER = "other "  # before the name of an engine: that of the other checkout
AGAINST = Path()  # where that is


class NotAvailable(Exception):
    """The engine cannot do the row; the text says why."""


class Worker:
    """A process that runs one row with one engine, see cpu_worker.py."""

    def __init__(self, engine, name, quick, timeout_s):
        python, folder = interop_python() if engine == "nnabla" else sys.executable, HERE
        if engine.startswith(OTHER):
            engine = engine.removeprefix(OTHER)
            python, folder = AGAINST / ".venv/bin/python", AGAINST / "benchmarks"
        command = [str(python), str(folder / "cpu_worker.py"), engine, name]
        self.timeout_s = timeout_s
        self.errors = tempfile.TemporaryFile("w+")
        self.cache = tempfile.TemporaryDirectory(
            prefix="nnl-benchmark-", ignore_cleanup_errors=True
        )
        environment = dict(os.environ)
        # torch.compile starts cold; in other rows it may use what the user offers, to save time
        if (ROWS | STEPS)[name].kind == "compile" or CACHE not in environment:
            environment[CACHE] = self.cache.name
        self.process = subprocess.Popen(
            [*command, "--quick"] if quick else command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=environment,
        )

    def answer(self):
        """The next answer of the process. Raises NotAvailable when there is none."""
        ready, _, _ = select.select([self.process.stdout], [], [], self.timeout_s)
        if not ready:
            raise NotAvailable(f"no answer after {self.timeout_s:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.errors.seek(0)
            raise NotAvailable(last_error(self.errors.read(), self.process.returncode))
        return json.loads(line)

    def ask(self, **request):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has died; answer() says of what
        return self.answer()

    def close(self):
        """Let the process end by itself, which ends its own children, or kill it."""
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # it has died
        try:
            self.process.wait(timeout=CLOSE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()
        self.cache.cleanup()


def last_error(text, code):
    """The message of a traceback: its last line that is not indented and names an exception."""
    lines = [line for line in text.splitlines() if line and not line[0].isspace()]
    named = [s for s in lines if s.partition(":")[0].endswith(("Error", "Exception"))]
    ended = f"killed by signal {-code}" if code < 0 else f"exit status {code}"
    return ended if code < 0 else (named or lines or [ended])[-1][:300]


def interop_python():
    """The interpreter that has NNabla, or None."""
    default = HERE.parent / ".venv-interop" / "bin" / "python"
    path = os.environ.get("NNL_INTEROP_PYTHON", str(default))
    return path if Path(path).exists() else None


def installed():
    """Engines that this machine can run, nnl's included."""
    found = list(OURS)
    for package, engines in (("torch", ("torch", "torch-cl", "torch-compile")),):
        if can_import(package):
            found += engines
    if interop_python():
        found.append("nnabla")
    if can_import("onnxruntime") and can_import("torch"):
        found.append("ort")
    return found


def can_import(package):
    command = [sys.executable, "-c", f"import {package}"]
    return subprocess.run(command, capture_output=True).returncode == 0


@contextmanager
def busy_process():
    """A process that keeps one core busy inside the with block."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.3)
        yield
    finally:
        process.kill()
        process.wait()


def start(stack, name, engines, args):
    """engine -> (worker, its first answer), and engine -> error."""
    workers, errors = {}, {}
    for engine in engines:
        worker = Worker(engine, name, args.quick, args.timeout)
        stack.callback(worker.close)
        try:
            workers[engine] = worker, worker.answer()
        except NotAvailable as e:
            worker.process.kill()  # it may still be at work, with all cores
            errors[engine] = str(e)
    return workers, errors


def alternate(workers, errors, rounds, title):
    """engine -> seconds of all steps, taken in turns."""
    seen = {engine: [] for engine in workers}
    for _ in tqdm(range(rounds), desc=title[:40], leave=False, disable=None):
        for engine, (worker, first) in workers.items():
            if engine in errors:
                continue
            steps = min(MOST_STEPS, max(1, round(ROUND_S / first["warm_s"])))
            time.sleep(SETTLE_S)
            try:
                seen[engine] += worker.ask(steps=steps)["times"]
            except NotAvailable as e:
                errors[engine] = str(e)
    return {engine: times for engine, times in seen.items() if times}


def measure(name, engines, args):
    """engine -> {"value", ...} in the row's unit, or {"error"}."""
    row = ROWS[name]
    result = {}
    if row.kind in ("memory", "compile"):  # one process at a time: they need memory and cores
        for engine in engines:
            with ExitStack() as stack:
                workers, errors = start(stack, name, [engine], args)
                for worker, first in workers.values():
                    result[engine] = alone(row, worker, first)
                result.update({e: {"error": text} for e, text in errors.items()})
        return result
    with ExitStack() as stack:
        workers, errors = start(stack, name, engines, args)
        seen = alternate(workers, errors, args.rounds, row.title)
        busy = {}
        if row.kind == "busy":
            with busy_process():
                busy = alternate(workers, errors, args.rounds, row.title)
    for engine, times in seen.items():
        result[engine] = summary(row, times, busy.get(engine), workers[engine][1])
    result.update({engine: {"error": text} for engine, text in errors.items()})
    return result


def alone(row, worker, first):
    if row.kind == "compile":
        # least of several warm steps: what is left of the first is recording and compiling
        warm = min([first["warm_s"], *worker.ask(steps=5)["times"]])
        return {"value": max(0.0, first["first_s"] - warm), **first, "warm_s": warm}
    worker.ask(steps=2)
    peak = worker.ask(memory=True)
    return {"value": peak["peak_mib"], **peak}


def summary(row, times, busy, first):
    median = statistics.median(times)
    if row.kind == "busy":
        if not busy:
            return {"error": "no answer beside the busy process"}
        slow = statistics.median(busy)
        return {"value": slow / median, "quiet_ms": median * 1e3, "busy_ms": slow * 1e3}
    scale = 1e6 / row.size if row.kind.startswith("chain") else 1e3
    quarter = statistics.quantiles(times, n=4) if len(times) > 1 else [median] * 3
    return {
        "value": median * scale,
        "best": min(times) * scale,
        "quartiles": [quarter[0] * scale, quarter[2] * scale],
        "steps": len(times),
        "first_s": first["first_s"],
    }


def least(result, engines):
    """(value, engine) of the best among these, or None."""
    return min(
        ((result[e]["value"], e) for e in engines if "value" in result.get(e, {})), default=None
    )


def judged(name, results):
    """nnl's value against the row's target: (what it is compared with, ratio, met), or None."""
    target = ROWS[name].target
    ours = least(results[name], OURS)
    if ours is None:
        return None
    if target[0] == "at most":
        return f"<= {target[1]:g} {ROWS[name].unit}", ours[0], ours[0] <= target[1]
    if target[0] == "row":
        other = least(results.get(target[1], {}), OURS)
        other = other and (other[0], f"nnl {target[1]}")
    elif target[0] == "engine":
        other = least(results[name], [target[1]])
    else:
        other = least(results[name], [e for e in ENGINES if e not in OURS])
    if other is None:
        return None
    ratio = ours[0] / other[0]
    what = ENGINES.get(other[1], other[1])
    return f"<= {target[-1]:g} x {what}", ratio, ratio <= target[-1]


def print_row(name, results):
    row, result = ROWS[name], results[name]
    print(f"\n{row.title}  [{name}], {row.unit}")
    peer = least(result, [e for e in ENGINES if e not in OURS])
    for engine in ENGINES:
        if "value" in result.get(engine, {}):
            cell = result[engine]
            ratio = f"{cell['value'] / peer[0]:8.2f} x best peer" if peer else ""
            extra = f"   best {cell['best']:.4g}" if "best" in cell else ""
            print(f"  {ENGINES[engine]:22} {cell['value']:12.4g} {ratio}{extra}")
        elif engine in result:
            print(f"  {ENGINES[engine]:22} not available: {result[engine]['error']}")
    sys.stdout.flush()


def print_targets(results):
    print(f"\n{'work':52} {'nnl':>10} {'ratio':>8}  target")
    for name in results:
        ours, verdict = least(results[name], OURS), judged(name, results)
        value = f"{ours[0]:10.4g}" if ours else f"{'-':>10}"
        if verdict is None:
            print(f"{ROWS[name].title:52.52} {value} {'-':>8}  nothing to compare")
        else:
            wanted, ratio, met = verdict
            word = "met" if met else "missed"
            print(f"{ROWS[name].title:52.52} {value} {ratio:8.3f}  {wanted}: {word}")


def write(path, report):
    """Replace the file at once, so that a stopped run leaves a whole one."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(report, indent=1) + "\n")
    os.replace(part, path)


def machine():
    command = [sys.executable, str(HERE / "machine.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    if interop_python():
        code = "import importlib.metadata as m; print(m.version('nnabla'))"
        done = subprocess.run([interop_python(), "-c", code], capture_output=True, text=True)
        found["versions"]["nnabla"] = done.stdout.strip()
    return found


def profile(name, args):
    with ExitStack() as stack:
        worker = Worker("nnl", name, args.quick, args.timeout)
        stack.callback(worker.close)
        worker.answer()
        print(worker.ask(profile=5)["text"])


def chosen(text, known, what):
    names = [n for n in text.split(",") if n]
    unknown = [n for n in names if n not in known]
    if unknown:
        raise SystemExit(f"cpu.py: {what} {unknown[0]!r} is unknown, wanted some of {list(known)}")
    return names


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help=f"rows, with commas: {', '.join(ROWS)}")
    peers = ", ".join(e for e in ENGINES if e not in OURS)
    parser.add_argument("--peers", help=f"peers, with commas, or none: {peers}")
    parser.add_argument("--quick", action="store_true", help="small sizes, two rounds")
    parser.add_argument("--rounds", type=int, help=f"turns of every engine ({ROUNDS})")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for an answer (900)")
    parser.add_argument("--out", type=Path, help="also write the numbers to this JSON file")
    parser.add_argument("--profile", metavar="ROW", help="only print nnl's profile of this row")
    parser.add_argument("--against", type=Path, metavar="DIR", help="also nnl of this checkout")
    args = parser.parse_args()
    if args.against:
        global AGAINST
        AGAINST = args.against.resolve()
        ENGINES.update({OTHER + e: f"{OTHER}{ENGINES[e]}" for e in OURS})
    if args.rounds is None:
        args.rounds = 2 if args.quick else ROUNDS
    return args


def main():
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # ends the workers on the way out
    try:
        if args.profile:
            profile(*chosen(args.profile, ROWS, "row"), args)
            return
        names = chosen(args.only, ROWS, "row") if args.only else list(ROWS)
        engines = installed()
        if args.peers is not None:
            peers = [] if args.peers == "none" else chosen(args.peers, ENGINES, "peer")
            engines = [e for e in engines if e in OURS or e in peers]
        report = {
            "date": time.strftime("%Y-%m-%d %H:%M"),
            "machine": machine(),
            "quick": args.quick,
            "rounds": args.rounds,
            "rows": {},
        }
        info = report["machine"]
        if args.quick:
            print("quick: small sizes, whatever the titles say; the numbers mean nothing")
        rates = ", ".join(f"{k} {v:.0f} GFLOP/s" for k, v in info["matmul_gflops"].items())
        print(f"{info['processor']}, {info['cores']} cores; matmul {rates}", end="; ")
        print(f"copy {info['copy_gb_s']:.0f} GB/s; {info['versions']}", flush=True)
        for name in names:
            wanted = [e for e in ROWS[name].engines if e in engines]
            if args.against:
                wanted += [OTHER + e for e in wanted if e in OURS]
            report["rows"][name] = measure(name, wanted, args)
            print_row(name, report["rows"])
            if args.out:
                write(args.out, report)
        print_targets(report["rows"])
    except NotAvailable as e:
        raise SystemExit(f"not available: {e}") from None


if __name__ == "__main__":
    main()
