# SPDX-License-Identifier: Apache-2.0
"""Models of packages, converted with open sizes and run at random ones: do they agree?

    python benchmarks/open_models.py [--models WORDS] [--sizes N]

Each ONNX file of real_models.py is converted without options, but for those of OPTIONS, and run at
N sizes that its program takes. The columns: the largest difference to ONNX Runtime, that to the
program that is converted at the size (`nnl convert --shape`), which is 0 where all bits are equal,
and the sizes. C++ has to give the bits that Python gives.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime as ort
from real_models import MODELS, TFLITE, difference, fetch

import nnl as nn
from nnl.cli.main import main as command
from nnl.ext.native import library

# Its two branches take other sizes: 512 samples and 64 before them, of 16 kHz.
OPTIONS = {"voice": ["--shape", "input=batch,576", "--shape", "state=2,batch,128"]}


def convert(*words: object) -> None:
    with open(os.devnull, "w") as none, contextlib.redirect_stdout(none):
        failed = command(["convert", *map(str, words)])
    if failed:
        raise ValueError("nnl convert failed")


def drawn(program, given, rng):
    """Inputs like those given, at random sizes from 0.6 to 1.6 of theirs; of batches 1 to 4."""
    slots = [program.slots[i] for i in program.inputs]
    names = {s.name: [getattr(n, "expression", n) for n in s.sizes or s.spec.shape] for s in slots}
    sizes = {}
    for k, axes in names.items():
        for axis, name in enumerate(axes):
            if not isinstance(name, str) or name in sizes:
                continue
            dim, n = program.dims[name], given[k].shape[axis]
            low, high = (1, 4) if n == 1 else (0.6 * n, 1.6 * n)
            low, high = max(low, dim.least), min(high, dim.greatest or high)
            sizes[name] = int(rng.integers(-(-low // dim.multiple), high // dim.multiple + 1))
            sizes[name] *= dim.multiple
    shapes = {k: tuple([sizes.get(n, n) for n in axes]) for k, axes in names.items()}
    longest = max(max(s, default=0) for s in shapes.values())
    feed = {}
    for k, shape in shapes.items():
        x = given[k]
        if "len" in k:  # of samples or letters: as many as there are, or fewer
            feed[k] = np.full(shape, longest, x.dtype)
            feed[k][1:] = rng.integers(longest // 2, longest + 1, feed[k][1:].shape)
        else:
            feed[k] = x if x.shape == shape else rng.choice(x.reshape(-1), shape)
    return feed, sizes


def check(name: str, folder: Path, times: int) -> str:
    """The largest differences to ONNX Runtime and to what is recorded, and the sizes tried."""
    package, file, inputs = MODELS[name]
    path, rng = folder / file, np.random.default_rng(len(name))
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    given = inputs()
    if not isinstance(given, dict):
        given = {session.get_inputs()[0].name: given}
    with tempfile.TemporaryDirectory() as work:
        program, closed = Path(work, "open.nnlp"), Path(work, "closed.nnlp")
        convert(path, program, *OPTIONS.get(name, []))
        found, model = nn.load_program(program), library().Model(str(program))
        opened = found[next(iter(found))]
        dtypes = {opened.slots[i].name: opened.slots[i].spec.dtype for i in opened.inputs}
        if not opened.dims:
            return "no size is open"
        worst, rounding, tried, refused = 0.0, 0.0, [], []
        while len(tried) < times:
            feed, sizes = drawn(opened, given, rng)
            wanted = [v.name for v in session.get_inputs()]
            for k in {*wanted} - {*feed}:  # of no use to the program
                feed[k] = np.repeat(given[k], sizes["batch_size"])
            theirs = None
            with contextlib.suppress(ort.capi.onnxruntime_pybind11_state.Fail, RuntimeError):
                theirs = session.run(None, {k: feed[k] for k in wanted})
            feed = {k: feed[k] for k in dtypes}
            try:
                ours = found.run(**feed)
            except ValueError as e:  # too small; ONNX Runtime takes windows larger than an array
                refused.append("x".join(map(str, sizes.values())))
                if "does not take the sizes" in str(e) and len(refused) <= times:
                    continue
                raise
            if theirs is None:
                raise ValueError(f"{sizes}: ONNX Runtime does not take these")
            worst = max([worst, *map(difference, ours.values(), theirs)])
            shapes = [f"{k}={','.join(map(str, v.shape))}" for k, v in feed.items() if v.ndim]
            convert(path, closed, *[w for s in shapes for w in ("--shape", s)])
            recorded = nn.load_program(closed).run(**feed)
            rounding = max([rounding, *[difference(recorded[k], y) for k, y in ours.items()]])
            held = {k: np.array(v, dtypes[k]) for k, v in feed.items()}
            for k, v in held.items():
                model.give(k, v)
            model.execute()
            for k, y in ours.items():
                again = np.empty(model.shape(k), y.dtype)
                model.take(k, again)
                if not np.array_equal(again, y, equal_nan=True):
                    raise ValueError(f"{sizes}: C++ gives another {k}")
            tried.append("x".join(map(str, sizes.values())))
    if worst > 1e-2 or rounding > 1e-5:
        raise ValueError(f"differs by {worst:.1e}, {rounding:.1e} at {', '.join(tried)}")
    small = f"; too small: {', '.join(refused)}" if refused else ""
    return f"{worst:9.1e} {rounding:9.1e}  {', '.join(tried)}{small}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path.home() / ".cache/nnl/real_models")
    parser.add_argument(
        "--models", default="", help="only those with one of these words, by commas"
    )
    parser.add_argument("--sizes", type=int, default=5, help="how many of each model")
    args = parser.parse_args()
    fetch(args.folder)
    words = [w for w in args.models.split(",") if w]
    for name in MODELS:
        if name in TFLITE or (words and not any(w in name for w in words)):
            continue
        try:
            print(f"{name:26} {check(name, args.folder, args.sizes)}", flush=True)
        except Exception as e:
            print(f"{name:26} {type(e).__name__}: {e}", flush=True)


if __name__ == "__main__":
    main()
