#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What it costs to read, decode and crop photographs for training: nnl.data.images beside
torchvision's loader and DALI's operators for the CPU, where they are installed.

    python benchmarks/input.py [--rounds 5] [--pictures 256] [--json FILE]

Photographs of 500 x 375 pixels, cut from those that scikit-image and scikit-learn bring along,
become random crops of 224 x 224. `ms` is processor time for a picture on one core, the median of
the rounds; `one` and `two` are pictures a second with as many processes (threads of DALI), the best
of the rounds: other programs only take away from it. The contenders take turns, each in a process
of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

SIZE, BATCH, WIDTH, HEIGHT = 224, 32, 500, 375
LEAST_SECONDS = 1.5
PHOTOGRAPHS = {
    "skimage.data": ("astronaut.png", "coffee.png", "hubble_deep_field.jpg", "retina.jpg"),
    "sklearn.datasets.images": ("china.jpg", "flower.jpg"),
}
Epoch = Callable[[], Iterator[Any]]


def make_photographs(folder: Path, number: int) -> float:
    """Write them into two classes; return their mean size in kB."""
    from PIL import Image

    whole = []
    for package, names in PHOTOGRAPHS.items():
        for name in names:
            with (files(package) / name).open("rb") as file:
                whole.append(Image.open(file).convert("RGB"))
    rng = np.random.default_rng(0)
    total = 0
    for i in range(number):
        photograph = whole[i % len(whole)]
        left = int(rng.integers(0, photograph.width - WIDTH + 1))
        top = int(rng.integers(0, photograph.height - HEIGHT + 1))
        path = folder / str(i % 2) / f"{i:04d}.jpg"
        path.parent.mkdir(exist_ok=True)
        part = photograph.crop((left, top, left + WIDTH, top + HEIGHT))
        part.save(path, quality=92)
        total += path.stat().st_size
    return total / number / 1000


# ---- contenders: each returns what goes through all pictures once, for a number of processes ----


def ours(folder: str, workers: int, **how: Any) -> Epoch:
    from nnl.data.images import open_images

    images = open_images(folder, BATCH, SIZE, workers=workers, **how)
    epochs = iter(range(10**6))
    return lambda: images.epoch(next(epochs))


def torchvisions(folder: str, workers: int) -> Epoch:
    import torch
    from torchvision import datasets, transforms

    torch.set_num_threads(1)
    recipe = transforms.Compose(
        [
            transforms.RandomResizedCrop(SIZE),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    loader = torch.utils.data.DataLoader(
        datasets.ImageFolder(folder, recipe),
        BATCH,
        shuffle=True,
        num_workers=workers,
        drop_last=True,
        persistent_workers=workers > 0,
    )
    return lambda: iter(loader)


def dalis(folder: str, workers: int) -> Epoch:
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=BATCH, num_threads=max(1, workers), device_id=None)
    def graph() -> Any:
        data, labels = fn.readers.file(file_root=folder, random_shuffle=True, name="reader")
        pictures = fn.decoders.image_random_crop(data, device="cpu", output_type=types.RGB)
        samples = fn.resize(pictures, size=(SIZE, SIZE))
        return fn.flip(samples, horizontal=fn.random.coin_flip()), labels

    pipeline = graph()
    pipeline.build()
    batches = pipeline.epoch_size("reader") // BATCH
    return lambda: (pipeline.run() for _ in range(batches))


CONTENDERS: dict[str, Callable[[str, int], Epoch]] = {
    "nnl": ours,
    "nnl, exact": lambda folder, workers: ours(folder, workers, exact=True),
    "nnl, engine=dali": lambda folder, workers: ours(folder, workers, engine="dali"),
    "torchvision": torchvisions,
    "dali": dalis,
}


def run(name: str, folder: str, workers: int) -> dict[str, float]:
    """What a picture costs in whole epochs, after one that warms up."""
    epoch = CONTENDERS[name](folder, workers)
    for _ in epoch():
        pass
    clock, processor = time.perf_counter(), time.process_time()
    done = 0
    while time.perf_counter() - clock < LEAST_SECONDS:
        done += BATCH * sum(1 for _ in epoch())
    return {
        "ms": 1e3 * (time.process_time() - processor) / done,
        "per_second": done / (time.perf_counter() - clock),
    }


def measure(name: str, folder: str, workers: int) -> dict[str, float] | None:
    """The same in a process of its own; None where the contender is not installed."""
    command = [sys.executable, __file__, "--contender", name, "--folder", folder]
    command += ["--workers", str(workers)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NNL_LOG_LEVEL": "ERROR"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if "ModuleNotFoundError" in done.stderr:
        return None
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pictures", type=int, default=256)
    parser.add_argument("--json")
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contender:
        print(json.dumps(run(args.contender, args.folder, args.workers)))
        return
    from machine import processor, versions

    runs: dict[tuple[str, int], list[Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        kilobytes = make_photographs(Path(folder), args.pictures)
        print(f"{args.pictures} photographs of {WIDTH} x {HEIGHT}, {kilobytes:.0f} kB each")
        for _ in range(args.rounds):
            for name in CONTENDERS:
                for workers in (0, 1, 2):
                    runs.setdefault((name, workers), []).append(measure(name, folder, workers))
    rows = []
    for name in CONTENDERS:
        if None in runs[name, 0]:
            print(f"{name}: not installed")
            continue
        row = {"name": name, "ms": statistics.median(found["ms"] for found in runs[name, 0])}
        for column, workers in (("one", 1), ("two", 2)):
            row[column] = max(found["per_second"] for found in runs[name, workers])
        rows.append(row)
    print(f"{'':20}{'ms':>8}{'one':>8}{'two':>8}{'two/one':>9}{'nnl is':>9}")
    for row in rows:
        values = f"{row['ms']:8.2f}{row['one']:8.0f}{row['two']:8.0f}{row['two'] / row['one']:9.2f}"
        print(f"{row['name']:20}{values}{row['ms'] / rows[0]['ms']:8.2f}x")
    if args.json:
        report = {"processor": processor(), "versions": versions(), "kilobytes": kilobytes}
        Path(args.json).write_text(json.dumps(report | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
