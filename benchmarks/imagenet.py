# SPDX-License-Identifier: Apache-2.0
"""Training images per second of the networks for ImageNet, beside PyTorch, in one run.

    python benchmarks/imagenet.py [--networks resnet18,resnet50] [--precisions float,bfloat16]
    python benchmarks/imagenet.py --data /data/imagenet --context cudnn --batch-size 128
    python benchmarks/imagenet.py --overhead         # the script beside its bare step

Every row is a network with a precision. Its engines, each in a process of its own, take turns; the
numbers are medians over the rounds, reading and augmenting pictures included. The time of an epoch
is worked out for ImageNet's 1,281,167 pictures. Without --data the pictures are cuttings of
photographs, 500 x 375 like ImageNet's, made in a temporary folder. PyTorch's networks are
torchvision's and timm's where these are installed, its pictures torchvision's transforms.
"""

import argparse
import datetime
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

from machine import describe

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
NETWORKS = (
    *("resnet18", "resnet50", "resnext50", "se_resnet50", "se_resnext50"),
    *("mobilenet_v3_small", "mobilenet_v3_large"),
    *(f"efficientnet_b{i}" for i in range(4)),
)
PICTURES = 1_281_167  # of an epoch of ImageNet
MADE = 512  # pictures that are made without --data, of ten classes
SIDES = (500, 375)
ROUND_S = 2.0  # of each engine in each round, at least MIN_STEPS
MIN_STEPS = 3


class Worker:
    """A process with one engine; see imagenet_worker.py."""

    def __init__(self, row):
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "imagenet_worker.py"), json.dumps(row)],
            **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.errors},
            text=True,
        )

    def answer(self):
        """The next answer. Raises RuntimeError with the last words of a process that has died."""
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.process.wait()
        self.errors.seek(0)
        said = self.errors.read().splitlines() or ["it said nothing"]
        raise RuntimeError(said[-1][:200])

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()


def measure(row, engines, rounds):
    """engine -> {"images_per_s", "step_ms", "waiting", "peak_mib"}, or {"error"}."""
    found = {}
    with ExitStack() as stack:
        workers = {}
        for engine in engines:
            worker = Worker({**row, "engine": engine})
            stack.callback(worker.close)
            try:
                workers[engine] = worker, worker.answer()["warm_s"]
            except RuntimeError as error:
                found[engine] = {"error": str(error)}
        turns = {engine: [] for engine in workers}
        for _ in range(rounds):
            for engine, (worker, warm) in workers.items():
                steps = max(MIN_STEPS, round(ROUND_S / warm))
                turns[engine].append({**worker.ask(steps=steps), "steps": steps})
    for engine, answers in turns.items():
        step = statistics.median(a["seconds"] / a["steps"] for a in answers)
        seconds = sum(a["seconds"] for a in answers)
        found[engine] = {
            "images_per_s": row["batch_size"] / step,
            "step_ms": 1e3 * step,
            "waiting": sum(a["waiting"] for a in answers) / seconds,
            "peak_mib": max(a["peak_mib"] for a in answers),
        }
    return found


def overhead(row):
    """What imagenet_overhead.py finds."""
    command = [sys.executable, str(HERE / "imagenet_overhead.py"), json.dumps(row)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def overhead_text(name, found):
    low, high = found["quartiles"]
    return (
        f"{name:32} {found['script_ms']:9.2f} {found['bare_ms']:9.2f} "
        f"{100 * found['overhead']:7.2f} %   ({100 * low:.2f} to {100 * high:.2f})"
    )


def make_pictures(folder):
    """JPEG files of the sides of ImageNet's: cuttings of photographs of scikit-image."""
    sys.path.insert(0, str(ROOT / "examples" / "imagenet"))
    import numpy as np
    import photographs
    from PIL import Image

    rng = np.random.default_rng(0)
    photographs.make(Path(folder) / "small")
    small = sorted((Path(folder) / "small" / "train").glob("*/*.jpg"))
    for i in range(MADE):
        path = small[i * len(small) // MADE]
        if path.stem == "damaged":
            continue
        into = Path(folder) / "train" / path.parent.name
        into.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as opened:
            picture = opened.convert("RGB").resize(SIDES, Image.Resampling.BICUBIC)
        noise = rng.normal(0, 6, (SIDES[1], SIDES[0], 3))  # so that files are as large as others
        pixels = (np.asarray(picture) + noise).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(into / f"{i:04d}.jpg", quality=90)


def epoch_text(images_per_s):
    hours = PICTURES / images_per_s / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} d"


def row_text(name, found):
    """A line for every engine of a row, with PyTorch's best as the measure of ours."""
    rates = {e: r["images_per_s"] for e, r in found.items() if "error" not in r}
    theirs = max((v for e, v in rates.items() if e.startswith("torch")), default=math.nan)
    lines = []
    for engine, r in found.items():
        if "error" in r:
            lines.append(f"{name:32} {engine:14} {r['error']}")
            continue
        ratio = (
            ""
            if engine.startswith("torch") or theirs != theirs
            else (f"{r['images_per_s'] / theirs:7.2f} x")
        )
        lines.append(
            f"{name:32} {engine:14}{r['images_per_s']:9.1f} {r['step_ms']:9.1f} "
            f"{epoch_text(r['images_per_s']):>8} {100 * r['waiting']:7.1f} % "
            f"{r['peak_mib']:8.0f} {ratio}"
        )
    return "\n".join(lines)


def parser():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--networks", default=",".join(NETWORKS))
    p.add_argument("--precisions", default="float,bfloat16", help="some of float, bfloat16, half")
    p.add_argument("--engines", default="nnl,torch,torch-cl", help="also torch-compile")
    p.add_argument("--data", help="a folder that has train; pictures are made if left out")
    p.add_argument("--synthetic", action="store_true", help="the same drawn pictures every time")
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--size", type=int, help="of all networks (the published ones)")
    p.add_argument("--workers", type=int, default=os.cpu_count(), help="that read pictures")
    p.add_argument("--context", default="cpu", choices=("cpu", "cudnn"))
    p.add_argument("--rounds", type=int, help="(5; 20 with --overhead)")
    p.add_argument("--overhead", action="store_true", help="train.py beside its bare step instead")
    p.add_argument("--out", type=Path, help="(benchmarks/results/imagenet-DATE.json)")
    return p


def main():
    args = parser().parse_args()
    args.synthetic |= args.overhead
    args.rounds = args.rounds or (20 if args.overhead else 5)
    engines = args.engines.split(",")
    if find_spec("torch") is None:
        engines = [e for e in engines if not e.startswith("torch")]
    sys.path.insert(0, str(ROOT))
    from nnl.models import NETWORKS as KNOWN

    machine, rows = describe(), {}
    day = datetime.date.today().isoformat()
    path = args.out or HERE / "results" / f"imagenet-{day}.json"
    print(f"{machine['processor']}, {machine['cores']} cores; batches of {args.batch_size}")
    head = f"{'':47}{'images/s':>9} {'step ms':>9} {'epoch':>8} {'waiting':>9} {'MiB':>8}"
    if args.overhead:
        head = f"{'':32} {'script ms':>9} {'bare ms':>9} {'overhead':>9}   (quartiles)"
    print(head)
    with tempfile.TemporaryDirectory(prefix="nnl-imagenet-") as folder:
        data = None if args.synthetic else args.data or folder
        if data == folder:
            make_pictures(folder)
        for name in args.networks.split(","):
            for precision in args.precisions.split(","):
                row = {
                    "network": name,
                    "type_config": precision,
                    "batch_size": args.batch_size,
                    "size": args.size or KNOWN[name].size,
                    "data": data,
                    "workers": 0 if args.synthetic else args.workers,
                    "context": args.context,
                }
                key = f"{name} {row['size']} {precision}"
                if args.overhead:
                    rows[key] = overhead({**row, "rounds": args.rounds})
                    print(overhead_text(key, rows[key]), flush=True)
                else:
                    rows[key] = measure(row, engines, args.rounds)
                    print(row_text(key, rows[key]), flush=True)
                result = {"machine": machine, "at": time.time(), "arguments": vars(args)}
                path.write_text(json.dumps({**result, "rows": rows}, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
