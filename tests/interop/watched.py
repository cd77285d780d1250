# SPDX-License-Identifier: Apache-2.0
"""Runs a program written for NNabla and writes down what its solvers see and its monitors are told.

    PYTHON watched.py LIBRARY RESULT UPDATES PROGRAM [ARGUMENTS]

Runs under NNabla's Python as under nnl's, after nnabla was renamed in the program, and ends it
after so many updates. Functions that draw random numbers draw numpy's, without dropout, and data
sets that would be downloaded are small random ones, so that both libraries can be compared.
"""

import gzip
import importlib
import io
import json
import os
import random
import runpy
import struct
import sys
import zlib

import numpy as np

LIBRARY, RESULT, UPDATES, PROGRAM = sys.argv[1:5]
SERIES = []
SOLVERS = {"Adam", "AdamW", "Adamax", "AMSGRAD", "AdaBound", "Lamb", "Momentum", "RMSprop", "Sgd"}
GONE = {"int": int, "float": float, "bool": bool, "object": object}  # from numpy, since 1.24


class Enough(BaseException):
    """Raised by the last update that is wanted."""


def module(name):
    return importlib.import_module(f"{LIBRARY}.{name}")


def pin(variable, f):
    """Let functions draw numpy's numbers; each call has a seed of its own."""
    seeds = iter(range(10**9))

    def drawn(draw):
        return variable.from_numpy_array(np.float32(draw(np.random.RandomState(next(seeds)))))

    def randn(mu=0, sigma=1, shape=(), seed=-1):
        return drawn(lambda r: r.randn(*shape) * sigma + mu)

    def rand(low=0, high=1, shape=(), seed=-1):
        return drawn(lambda r: r.rand(*shape) * (high - low) + low)

    def randint(low=0, high=1, shape=(), seed=-1):
        return drawn(lambda r: r.randint(low, high, tuple(shape)))

    def unchanged(x, *args, **kwargs):
        return f.identity(x)

    f.randn, f.rand, f.randint = randn, rand, randint
    f.dropout = f.image_augmentation = f.random_crop = f.random_flip = f.random_shift = unchanged


class Watched:
    """A solver that notes the sums of gradients and of parameters at each update."""

    def __init__(self, solver):
        self.__dict__["_solver"] = solver

    def __getattr__(self, name):
        return getattr(self._solver, name)

    @property
    def __class__(self):
        return type(self._solver)

    def update(self, *args, **kwargs):
        variables = self._solver.get_parameters().values()
        for what, arrays in (("g", [v.g for v in variables]), ("w", [v.d for v in variables])):
            SERIES.append((what, sum(float(np.abs(np.float64(a)).sum()) for a in arrays)))
        self._solver.update(*args, **kwargs)
        if sum(what == "g" for what, _ in SERIES) >= int(UPDATES):
            raise Enough


def watched(make):
    return lambda *args, **kwargs: Watched(make(*args, **kwargs))


def download(url, *args, **kwargs):
    """A small random stand-in of MNIST and the Penn treebank."""
    rng = np.random.RandomState(zlib.crc32(url.rsplit("/", 1)[-1][:5].encode()))
    labels = rng.randint(0, 10, 400)
    images = np.random.RandomState(0).rand(10, 784)[labels] * 150 + rng.rand(400, 784) * 100
    if "idx1" in url:
        return io.BytesIO(gzip.compress(struct.pack(">II", 2049, 400) + bytes(labels.tolist())))
    if "idx3" in url:
        head = struct.pack(">IIII", 2051, 400, 28, 28)
        return io.BytesIO(gzip.compress(head + images.astype(np.uint8).tobytes()))
    if "ptb" in url:
        words = [f"w{i}" for i in rng.zipf(1.5, 4000) % 200]
        return io.BytesIO("\n".join(map(" ".join, np.reshape(words, (-1, 20)))).encode())
    raise FileNotFoundError(url)


def main():
    for name in GONE.keys() - vars(np).keys():
        setattr(np, name, GONE[name])
    pin(importlib.import_module(LIBRARY).Variable, module("functions"))
    for m in {module("solvers"), module("solver")}:  # one module in nnl
        for name in SOLVERS & vars(m).keys():
            setattr(m, name, watched(getattr(m, name)))
    series = module("monitor").MonitorSeries
    add = series.add

    def told(self, index, value):
        SERIES.append((self.name, float(np.mean(value))))
        add(self, index, value)

    series.add = told
    module("utils.data_source_loader").download = download
    np.random.seed(0)
    random.seed(0)
    sys.argv = [PROGRAM, *sys.argv[5:]]
    sys.path[0] = os.getcwd()
    try:
        runpy.run_path(PROGRAM, run_name="__main__")
    except Enough:
        pass
    finally:
        with open(RESULT, "w") as f:
            json.dump(SERIES, f)


main()
