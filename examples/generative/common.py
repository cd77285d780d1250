# SPDX-License-Identifier: Apache-2.0
"""What the generative examples share: the command line, the loop, checkpoints, grids, files.

    python examples/generative/FAMILY.py train [--size paper] [--steps N] [--out DIR]
    python examples/generative/FAMILY.py sample [--seed N] [--count N] [--out DIR]
    python examples/generative/FAMILY.py export [--out DIR]

A family is a class, made with one of its SIZES: `solvers` and `averaged` name its solvers and the
scopes whose weights are averaged; `batch(rng)` gives the arrays of a step, `step(*arrays)` trains
and returns losses by name, both after `done` steps; `sample(count, seed)` gives images in [-1, 1],
`measure()` numbers by name, and `network()` what is exported: a function that nnl.compile has made,
called once.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import nnl as nn
import nnl.solvers as S
from nnl.core.parameters.atomic import replacing
from nnl.training import MovingAverage, load_run, save_run
from nnl.utils.image_utils import imsave

CHECKPOINT = "checkpoint.safetensors"
DECAY = 0.995  # of averages; that of papers, 0.9999, is for a hundred thousand steps and more
FORMATS = (".nnp", ".onnx", ".nnlp")
FOLDER = "a folder of pictures of one size, of which the middle square is taken"


class Run:
    """A family that trains, and goes on where a folder has a checkpoint."""

    def __init__(self, make: Any, size: str, out: Path, seed: int = 0, data: Any = None) -> None:
        nn.clear_parameters()
        nn.seed(seed)
        self.out, self.step, self.seconds = out, 0, 0.0
        self.rng = np.random.default_rng(seed)
        self.family = make(make.SIZES[size], data)
        self.family.done = 0
        self.parameters = nn.get_parameters(grad_only=False)
        averaged = getattr(self.family, "averaged", ())
        chosen = {k: v for k, v in self.parameters.items() if k.split("/")[0] in averaged}
        self.average = MovingAverage(chosen, DECAY)
        if (out / CHECKPOINT).is_file():
            self._load()

    def _load(self) -> None:
        given = self.parameters, self.family.solvers, self.average.values
        progress = load_run(self.out / CHECKPOINT, *given)
        self.step, self.average.updates = progress["step"], progress["step"]
        self.seconds = progress["seconds"]
        self.rng.bit_generator.state = progress["rng"]
        getattr(self.family, "resume", lambda state: None)(progress["family"])
        print(f"going on after step {self.step}", file=sys.stderr)

    def save(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        progress = {
            "step": self.step,
            "seconds": self.seconds,
            "rng": self.rng.bit_generator.state,
            "family": getattr(self.family, "state", dict)(),
        }
        path = self.out / CHECKPOINT
        save_run(path, self.parameters, self.family.solvers, progress, self.average.values)

    def train(self, steps: int, save_every: int = 0) -> dict[str, list[float]]:
        """Train up to a number of steps; the losses of each by name."""
        losses: dict[str, list[float]] = {}
        bar = tqdm(total=steps, initial=self.step, unit="step", disable=None, file=sys.stderr)
        while self.step < steps:
            begin = time.perf_counter()
            self.family.done = self.step
            made = self.family.step(*self.family.batch(self.rng))
            for name, loss in made.items():
                losses.setdefault(name, []).append(float(getattr(loss, "d", loss)))
            self.step += 1
            self.average.update()
            self.seconds += time.perf_counter() - begin
            bar.update()
            if self.step % 10 == 0:
                bar.set_postfix({n: f"{np.mean(v[-50:]):.3f}" for n, v in losses.items()})
            if save_every and (self.step % save_every == 0 or self.step == steps):
                self.save()
                with self.average.instead():
                    grid(self.out / f"step{self.step:06}.png", self.family.sample(16, 0))
        bar.close()
        return losses

    def export(self, folder: Path) -> list[Path]:
        """Write the network with its averaged weights in every format."""
        folder.mkdir(parents=True, exist_ok=True)
        with self.average.instead():
            compiled = self.family.network()
            for extension in FORMATS:
                with replacing(folder / f"network{extension}") as file:
                    compiled.save(str(file))
        return [folder / f"network{extension}" for extension in FORMATS]


def adams(**settings: dict[str, float]) -> dict[str, Any]:
    """An Adam for the parameters of each scope."""
    solvers = {scope: S.Adam(**given) for scope, given in settings.items()}
    for scope, solver in solvers.items():
        with nn.parameter_scope(scope):
            solver.set_parameters(nn.get_parameters())
    return solvers


def learn(solver: Any, loss: Any) -> None:
    """One step of a solver."""
    solver.zero_grad()
    loss.backward(clear_buffer=True)
    solver.update()


def pixels(array: np.ndarray) -> Any:
    """An array as what networks take."""
    return nn.Variable.from_numpy_array(np.ascontiguousarray(array))


def grid(path: Path, images: np.ndarray, columns: int = 0) -> None:
    """Write images (N, C, H, W) in [-1, 1] side by side as one PNG file."""
    n, c, h, w = images.shape
    columns = columns or int(np.ceil(np.sqrt(n)))
    rows = -(-n // columns)
    sheet = np.zeros((rows * columns, c, h, w), np.float32)
    sheet[:n] = (images.clip(-1, 1) + 1) * 127.5
    sheet = sheet.reshape(rows, columns, c, h, w).transpose(0, 3, 1, 4, 2)
    sheet = sheet.reshape(rows * h, columns * w, c).round().astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    imsave(str(path), sheet if c == 3 else sheet[:, :, 0])


def average_over(images: np.ndarray, batch: int, f: Any) -> np.ndarray:
    """f of parts of a batch's size each, the last one filled up, together."""
    found = []
    for begin in range(0, len(images), batch):
        part = images[begin : begin + batch]
        filled = np.concatenate([part, np.repeat(part[-1:], batch - len(part), 0)])
        found.append(f(filled)[: len(part)])
    return np.concatenate(found)


def main(make: Any) -> None:
    """What a family's script does."""
    text = sys.modules[make.__module__].__doc__
    parser = argparse.ArgumentParser(description=text)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("what", choices=("train", "sample", "export"))
    parser.add_argument("--size", choices=[*make.SIZES], default="small")
    parser.add_argument("--steps", type=int, help="instead of those of the size")
    parser.add_argument("--data", type=Path, help=FOLDER)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=16, help="samples")
    parser.add_argument("--save-every", type=int, default=200, help="steps between checkpoints")
    stem = Path(sys.argv[0]).stem
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out" / stem)
    for flag, kind in getattr(make, "OPTIONS", {}).items():
        parser.add_argument(f"--{flag}", type=kind, help="of sample; see above")
    options = parser.parse_args()
    for name in ("steps", "count", "save_every"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} is {value}, wanted at least 1")
    try:
        run = Run(make, options.size, options.out, options.seed, options.data)
    except ValueError as error:
        parser.error(str(error))
    if options.what == "train":
        steps = options.steps or make.SIZES[options.size]["steps"]
        run.train(steps, options.save_every)
        with run.average.instead():
            found = run.family.measure()
        found = {name: round(float(value), 4) for name, value in found.items()}
        print(json.dumps({"steps": run.step, "seconds": round(run.seconds), **found}))
        return
    if not run.step:
        parser.error(f"there is no {options.out / CHECKPOINT}: train first")
    if options.what == "export":
        print(*run.export(options.out), sep="\n")
        return
    more = {f: getattr(options, f) for f in getattr(make, "OPTIONS", {}) if getattr(options, f)}
    path = options.out / f"samples{options.seed}.png"
    with run.average.instead():
        grid(path, run.family.sample(options.count, options.seed, **more))
    print(path)
