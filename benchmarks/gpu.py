# SPDX-License-Identifier: Apache-2.0
"""Training on a GPU: nnl beside PyTorch, in one run on one machine. Not yet run on a GPU.

    python benchmarks/gpu.py [--only resnet50-bfloat16,lenet-float] [--engines nnl,torch]
                             [--minutes 8] [--out FOLDER] [--check]

Each engine runs a row at each batch size in a process of its own, one at a time; the best batch
counts. What tells most comes first: no measurement starts after the given minutes, or ends later
than a minute after them. Memory is what the device has in use at the end of a run, the CUDA context
included. The results go to FOLDER/<gpu>-<date>.json, rewritten after every measurement, and a table
to stdout.
"""

import argparse
import ctypes
import datetime
import importlib.metadata
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpu_rows import ENGINES, OURS, ROWS, in_order

HERE = Path(__file__).resolve().parent
PACKAGES = (
    "nnl", "numpy", "cupy-cuda13x", "nvidia-cudnn-cu13", "nvidia-cudnn-frontend", "torch", "triton",
)  # fmt: skip
TIMEOUT_S = 240.0  # of one process: torch.compile takes minutes
SECONDS = 3.0  # of measuring in each


def lacking():
    """What this machine lacks for a measurement of nnl, in words."""
    found = []
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        found.append("NVIDIA's driver (libcuda.so.1)")
    for module, package in (("cupy", "cupy-cuda13x"), ("cudnn", "nvidia-cudnn-frontend")):
        if importlib.util.find_spec(module) is None:
            found.append(f"{package} (pip install 'nnl[cuda13]')")
    return found


def gpu():
    """Name of the GPU, as nvidia-smi tells it."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else "unknown GPU"


def versions():
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def measure(engine, row, batch, timeout_s):
    """What the worker answers, or {"error": why}."""
    command = [sys.executable, str(HERE / "gpu_worker.py"), engine, row.name, str(batch)]
    environment = {**os.environ, "PYTHONPATH": f"{HERE.parent}:{os.environ.get('PYTHONPATH', '')}"}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        # files, since compilers that a process leaves behind would keep a pipe open
        process = subprocess.Popen(
            [*command, str(SECONDS)], stdout=out, stderr=err, env=environment,
            start_new_session=True,
        )  # fmt: skip
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end_session(process)
        out.seek(0), err.seek(0)
        answer, errors = out.read(), err.read()
    if status == 0:
        return json.loads(answer.strip().splitlines()[-1])
    print(errors[-3000:], file=sys.stderr)
    if status is None:
        return {"error": f"it took more than {timeout_s:.0f} s"}
    lines = [line for line in errors.splitlines() if line.strip()]
    return {"error": lines[-1][:300] if lines else f"exit status {status}"}


def end_session(process):
    """End a process and those that it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # all have ended by themselves
    process.wait()


def value(row, batch, found):
    """Items per second, or milliseconds per step."""
    return row.items(batch) / found["seconds"] if row.unit else 1e3 * found["seconds"]


def best(row, results):
    """(value, batch, memory) of the best batch; None if no batch ran."""
    values = [
        (value(row, int(b), r), int(b), r["memory_bytes"])
        for b, r in results.items()
        if "seconds" in r
    ]
    if not values:
        return None
    return max(values) if row.unit else min(values)


def verdict(row, found):
    """How nnl's best compares with PyTorch's best, and which goals it meets."""
    ours = [found[e] for e in OURS if found.get(e)]
    theirs = [v for e, v in found.items() if e not in OURS and v]
    if not ours:
        return "not measured"
    pick = max if row.unit else min
    mine = pick(ours)[0]
    words = []
    if theirs:
        other = pick(theirs)[0]
        words.append(f"{mine / other if row.unit else other / mine:.2f} x PyTorch")
    met = [g for g in row.goals if (mine >= g if row.unit else mine <= g)]
    if row.goals:
        words.append(f"goals {list(row.goals)}: {len(met)} met")
    return ", ".join(words)


def table(report):
    print(f"\n{report['gpu']}, {report['date']}; nnl is ahead where the ratio is above 1")
    for name, engines in report["rows"].items():
        row = ROWS[name]
        found = {e: best(row, r) for e, r in engines.items()}
        print(f"{name}: {verdict(row, found)}")
        for engine, results in engines.items():
            got = found[engine]
            if got is None:
                why = next((r["error"] for r in results.values() if "error" in r), "not run")
                print(f"  {engine:<14} -  {why[:90]}")
                continue
            unit = f"{row.unit}/s" if row.unit else "ms/step"
            print(f"  {engine:<14} {got[0]:>11.4g} {unit}  batch {got[1]}, {got[2] / 1e9:.1f} GB")


def write(path, report):
    """Replace the file at once, so that a stopped run leaves a whole one."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(report, indent=1) + "\n")
    os.replace(part, path)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(ROWS), help="rows, separated by commas")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--minutes", type=float, default=8.0, help="no measurement starts later")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--check", action="store_true", help="only say what is missing here")
    args = parser.parse_args()
    for text, known in ((args.only, ROWS), (args.engines, ENGINES)):
        for name in text.split(","):
            if name not in known:
                parser.error(f"{name!r} is none of {', '.join(known)}")
    return args


def main():
    args = arguments()
    missing = lacking()
    if missing:
        print(f"gpu.py: this machine lacks {', '.join(missing)}; nothing was measured")
        return 2
    if args.check:
        return 0
    from tqdm import tqdm

    args.out.mkdir(parents=True, exist_ok=True)
    name, date = gpu(), datetime.date.today().isoformat()
    short = re.sub(r"[^a-z0-9]+", "-", name.split(",")[0].lower().replace("nvidia", "")).strip("-")
    path = args.out / f"{short}-{date}.json"
    report = {"gpu": name, "date": date, "versions": versions(), "rows": {}}
    work = in_order([ROWS[n] for n in args.only.split(",")], args.engines.split(","))
    end = time.monotonic() + 60.0 * args.minutes
    with tqdm(work, disable=None) as bar:
        for row, batch, engine in bar:
            bar.set_description(f"{row.name} {engine} {batch}")
            results = report["rows"].setdefault(row.name, {}).setdefault(engine, {})
            left = end - time.monotonic()
            if left <= 0:
                results[str(batch)] = {"error": f"not started: {args.minutes:g} minutes were over"}
                continue
            results[str(batch)] = measure(engine, row, batch, min(TIMEOUT_S, left + 60.0))
            write(path, report)
    table(report)
    print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
