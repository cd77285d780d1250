# SPDX-License-Identifier: Apache-2.0
"""Damages files at random and reads them: a program of its own, so that nothing can take the tests
with it.

    python -m tests.converters.damaged_files KIND COUNT SEED FOLDER [FIRST]

A read ends well or in one clean error that names the file. Everything else is printed with the
number of the file, which FIRST repeats: another exception, words of Python's own errors, more than
MEMORY, more than SECONDS.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.converters.weights import read_weights
from nnl.data.settings import settings
from nnl.data.source_cache import CacheDataSource
from nnl.data.source_csv import CsvDataSource
from nnl.data.source_file_cache import DataSourceWithFileCache
from nnl.utils.load import load
from nnl.utils.save import save
from tests.converters.loop_networks import NETWORKS
from tests.graph.saved import training_step
from tests.native.kernels import require_library

SECONDS = 20  # for one file, on a machine with other work
MEMORY = 4 << 30  # bytes beyond those of the start
LIES = (b"0", b"-1", b"-7", b"4294967296", b"1000000000", b"9223372036854775807", b"1e999", b"nan")
UNCLEAN = re.compile(
    r"\b(Type|Attribute|Key|Index|UnboundLocal|ZeroDivision|Overflow|Recursion|Memory|Assertion|"
    r"Unicode\w+|Runtime)Error\b|std::|object at 0x"
)

Reader = Callable[[Path], Any]


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """The bytes with a few of them changed, moved, repeated or cut off; numbers in text lie."""
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        if not out:
            break
        at, kind = int(rng.integers(len(out))), int(rng.integers(9))
        length = int(rng.integers(1, 33))
        if kind == 0:
            out[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            out[at] = int(rng.choice([0, 1, 127, 128, 255]))
        elif kind == 2:
            del out[at : at + length]
        elif kind == 3:
            out[at:at] = out[at : at + length]
        elif kind == 4:
            out[at : at + length] = bytes(len(out[at : at + length]))
        elif kind == 5:
            other = int(rng.integers(len(out)))
            out[at : at + length] = out[other : other + length]
        elif kind == 6:
            numbers = [m.span() for m in re.finditer(rb"(?<![\w.])-?\d+(\.\d+)?(?![\w.])", out)]
            if numbers:
                begin, end = numbers[int(rng.integers(len(numbers)))]
                out[begin:end] = LIES[int(rng.integers(len(LIES)))]
        elif kind == 7:
            out[at : at + 8] = int(rng.choice([2**32, 2**31 - 1, 2**62])).to_bytes(8, "little")
        elif rng.random() < 0.3:
            del out[at:]
    return bytes(out)


# ---- good files of every kind, and what reads them ----


def network() -> dict[str, Any]:
    x = nn.Variable((2, 2, 6, 6))
    h = F.max_pooling(F.relu(PF.convolution(x, 3, (3, 3), name="c")), (2, 2))
    y = F.softmax(PF.affine(PF.batch_normalization(F.dropout(h), name="b"), 3, name="f"))
    loss = F.mean(F.categorical_cross_entropy(y, t := nn.Variable((2, 1))))
    solver = S.Adam()
    solver.set_parameters(nn.get_parameters())
    return {
        "networks": [
            {
                "name": "n",
                "batch_size": 2,
                "outputs": {"y": y, "l": loss},
                "names": {"x": x, "t": t},
            }
        ],
        "executors": [{"name": "e", "network": "n", "data": ["x"], "output": ["y"]}],
        "datasets": [
            {"name": "d", "uri": "d.csv", "variables": ["x", "t"], "batch_size": 2, "cache_dir": ""}
        ],
        "optimizers": [{"name": "o", "solver": solver, "network": "n", "dataset": "d"}],
    }


def nnabla(extension: str, **more: Any) -> Callable[[Path], tuple[list[Path], Reader]]:
    def make(folder: Path) -> tuple[list[Path], Reader]:
        paths = [folder / f"a{extension}"]
        save(paths[0], network(), **more)
        if extension == ".nntxt":
            paths.append(folder / "loop.nntxt")
            paths[1].write_text(NETWORKS["repeat in a recurrent part"])

        def read(path: Path) -> None:
            load(path, prepare_data_iterator=False)
            nn.clear_parameters()
            nn.load_parameters(path)

        return paths, read

    return make


def parameters(folder: Path) -> tuple[list[Path], Reader]:
    network()
    paths = [folder / "p.h5", folder / "p.protobuf"]
    for path in paths:
        nn.save_parameters(path)
    return paths, nn.load_parameters


def parameters_in_cpp(folder: Path) -> tuple[list[Path], Reader]:
    nn.save_program(folder / "n.nnlp", network()["networks"][0]["outputs"]["y"])
    file = require_library().ModelFile(str(folder / "n.nnlp"))
    paths = [folder / f"p{kind}" for kind in (".h5", ".protobuf", ".safetensors")]
    for path in paths:
        file.save_parameters(str(path))
    for path in list(paths[:2]):
        paths.append(path.with_suffix(f"{path.suffix}.nnp"))
        with zipfile.ZipFile(paths[-1], "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(path, path.name)
    return paths, lambda path: file.load_parameters(str(path))


def networks_in_cpp(folder: Path) -> tuple[list[Path], Reader]:
    lib = require_library()
    x = nn.Variable((2, 2, 6, 6))
    h = F.max_pooling(F.relu(PF.convolution(x, 3, (3, 3), name="c")), (2, 2))
    y = F.softmax(PF.affine(PF.batch_normalization(h, batch_stat=False), 3, name="f")) * 2
    network = {"name": "n", "batch_size": 2, "outputs": {"y": y}, "names": {"x": x}}
    save(str(folder / "a.nnp"), {"networks": [network]})
    # stored and without checksums of their own, or the damage would not come further than these
    with zipfile.ZipFile(folder / "a.nnp") as archive:
        text, *_ = [archive.read(n) for n in archive.namelist() if n.endswith(".nntxt")]

    def read(path: Path) -> None:
        whole = folder / f"{path.name}.nnp"
        with zipfile.ZipFile(whole, "w") as archive:
            archive.writestr("network.nntxt", path.read_bytes())
            archive.write(folder / "p.h5", "p.h5")
        try:
            lib.Model(lib.ModelFile(str(whole)), "").run({})
        except ValueError as error:
            raise ValueError(str(error).replace(str(whole), str(path))) from None

    nn.save_parameters(folder / "p.h5")
    (folder / "a.nntxt").write_bytes(text)
    return [folder / "a.nntxt"], read


def states(folder: Path) -> tuple[list[Path], Reader]:
    x = nn.Variable((2, 3))
    loss = F.sum(PF.affine(x, 2, name="s"))
    solver = S.Adam()
    solver.set_parameters(nn.get_parameters())
    loss.forward()
    loss.backward()
    solver.update()
    paths = [folder / "s.h5", folder / "s.protobuf"]
    for path in paths:
        solver.save_states(path)
    return paths, solver.load_states


def networks_onnx(folder: Path) -> tuple[list[Path], Reader]:
    from nnl.converters.onnx import load as load_onnx
    from nnl.converters.onnx import report, save

    found = network()["networks"][0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(folder / "n.onnx", {"y": found["outputs"]["y"]}, {"x": found["names"]["x"]})
        save(folder / "e.onnx", {"y": found["outputs"]["y"]}, external_data=True)
        cases = [
            *list(report.cases("node"))[::4],
            *list(report.cases("simple")),
            *list(report.cases("pytorch-converted"))[::9],
        ]
    inputs: dict[str, Any] = {"n.onnx": [np.ones((2, 2, 6, 6), np.float32)]}
    inputs["e.onnx"] = inputs["n.onnx"]
    paths = [folder / "n.onnx", folder / "e.onnx"]
    for i, case in enumerate(c for c in cases if c.data):
        paths.append(folder / f"{i}.onnx")
        paths[-1].write_bytes(case.model.SerializeToString())
        inputs[paths[-1].name] = case.data[0][0]

    def read(path: Path) -> None:
        load_onnx(path).run(*inputs[path.name])

    return paths, read


def weights(folder: Path) -> tuple[list[Path], Reader]:
    arrays = {"a.weight": np.ones((3, 4), np.float32), "a.bias": np.arange(3), "b": np.float64(1)}
    np.savez(folder / "w.npz", **arrays)
    np.savez_compressed(folder / "c.npz", **arrays)
    paths = [folder / "w.npz", folder / "c.npz"]
    header = b'{"a.weight":{"dtype":"F32","shape":[3,4],"data_offsets":[0,48]},'
    header += b'"b":{"dtype":"BF16","shape":[2],"data_offsets":[48,52]},"__metadata__":{"a":"b"}}'
    path = folder / "w.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(52))
    paths.append(path)
    try:
        import torch
    except ModuleNotFoundError:
        return paths, read_weights
    tensors = {k: torch.tensor(v) for k, v in arrays.items()}
    for name, old in (("w.pt", False), ("o.pt", True)):
        torch.save(tensors, folder / name, _use_new_zipfile_serialization=not old)
        paths.append(folder / name)
    for path in paths[-2:]:
        try:
            read_weights(path)
        except ValueError:  # a format that is not read
            paths.remove(path)
    return paths, read_weights


def tables(folder: Path) -> tuple[list[Path], Reader]:
    np.save(folder / "m.npy", np.ones((2, 3), np.float32))
    (folder / "v.csv").write_text("1,2\n3,4\n")
    path = folder / "d.csv"
    rows = "".join(f"m.npy,v.csv,{i},{i + 0.5},{i % 2}\n" for i in range(5))
    path.write_text("x:matrix,v,u__0,u__1:b,y:label\n" + rows)

    def read(path: Path) -> None:
        with CsvDataSource(str(folder / "d.csv")) as source:
            for _ in range(source.size):
                source.next()

    return [path, path, folder / "m.npy", folder / "v.csv"], read


def caches(folder: Path) -> tuple[list[Path], Reader]:
    (folder / "d.csv").write_text("x__0,x__1,y\n" + "1,2,3\n" * 6)
    paths = []
    for extension in (".npy", ".h5"):
        settings.cache_file_format, settings.file_cache_rows = extension, 4
        kept = folder / extension[1:]
        DataSourceWithFileCache(CsvDataSource(str(folder / "d.csv")), str(kept)).close()
        paths += sorted(kept.iterdir())

    def read(path: Path) -> None:
        with CacheDataSource(str(path.parent)) as source:
            for _ in range(source.size):
                source.next()

    return paths, read


def programs(folder: Path) -> tuple[list[Path], Reader]:
    x, t = nn.Variable((2, 1, 6, 6)), nn.Variable((2, 1))
    x.d, t.d = 1, 0

    def network(x: Any, t: Any) -> Any:
        h = F.relu(PF.batch_normalization(PF.convolution(x, 16, (3, 3))))
        return F.softmax_cross_entropy(PF.affine(F.dropout(h), 3), t)

    step = training_step(network, S.Momentum(0.1))
    step(x=x, t=t)
    step.save(folder / "step.nnlp")
    nn.save_program(folder / "pool.nnlp", F.max_pooling(x * 2 - 1, (2, 2)), {"x": x})
    nn.clear_parameters()
    for path in (folder / "step.nnlp", folder / "pool.nnlp"):  # else nothing but that is found
        path.write_bytes(path.read_bytes().replace(b'"crc32"', b'"crc33"'))

    def read(path: Path) -> None:
        found = nn.load_program(path)
        found.text()
        for name in found:
            inputs = {k: np.zeros(s.shape, s.dtype) for k, s in found.inputs(name).items()}
            found.run(name, **inputs)

    return [folder / "step.nnlp", folder / "pool.nnlp"], read


def runtime(folder: Path) -> tuple[list[Path], Reader]:
    from nnl.converters.formats import read_model
    from nnl.converters.networks.model import Network
    from nnl.converters.nnb import writer

    x = nn.Variable((1, 2, 6, 6))
    h = F.max_pooling(F.relu(PF.convolution(x, 3, (3, 3))), (2, 2))
    y = F.softmax(PF.affine(F.pad(h, (1, 1)), 3))
    writer.save(folder / "a.nnb", Network("n", {"x": x}, {"y": y}))
    nn.clear_parameters()

    def read(path: Path) -> None:
        network = read_model([str(path)])[0].network()
        network.run({k: np.zeros(v.shape, np.float32) for k, v in network.inputs.items()})

    return [folder / "a.nnb"], read


def frozen_graphs(folder: Path) -> tuple[list[Path], Reader]:
    from nnl.converters.formats import read_model
    from tests.converters import tensorflow_graphs as graphs

    looped = graphs.Graph()
    looped.input("x", 3)
    looped("Neg", graphs.loop(looped, 3))
    found = {"i": graphs.images()[0], "l": looped, "f": graphs.functions()}

    def read(path: Path) -> None:
        network = read_model([str(path)])[0].network()
        network.run({k: np.zeros(v.shape, np.float32) for k, v in network.inputs.items()})

    return [g.save(folder / f"{name}.pb") for name, g in found.items()], read


def lite(folder: Path) -> tuple[list[Path], Reader]:
    from nnl.converters.formats import read_model
    from nnl.converters.networks.model import Network
    from nnl.converters.tflite import writer

    x = nn.Variable((1, 2, 6, 6))
    h = F.max_pooling(F.relu(PF.convolution(x, 3, (3, 3), stride=(2, 2), pad=(1, 1))), (2, 2))
    y = F.softmax(PF.affine(F.pad(h, (1, 1)), 3))
    z = F.sort(F.interpolate(F.tile(h, (1, 1, 2, 2))[:, :, ::2], output_size=(3, 5)), axis=2)
    at = F.max(z, axis=3, keepdims=True, only_index=True)
    z = F.one_hot(at, (5,)) + F.broadcast(h[:, :, :1, :1], (1, 3, 3, 5))
    z = F.batch_matmul(z, F.transpose(z, (0, 1, 3, 2)))
    paths = [folder / "a.tflite", folder / "b.tflite"]
    for path, out in zip(paths, (y, F.concatenate(z, F.cumsum(z, axis=1), axis=3)), strict=True):
        writer.save(path, Network("n", {"x": x}, {"y": out}))
    nn.clear_parameters()

    def read(path: Path) -> None:
        network = read_model([str(path)])[0].network()
        network.run({k: np.zeros(v.shape, np.float32) for k, v in network.inputs.items()})

    return paths, read


def saved_models(folder: Path) -> tuple[list[Path], Reader]:
    from nnl.converters.formats import read_model
    from nnl.converters.networks.model import Network
    from nnl.converters.tensorflow import checkpoint, table
    from nnl.converters.tensorflow.writing import writer

    for module in (checkpoint, table):  # else nothing but damaged checksums is found
        module.masked = lambda data: 0
    x = nn.Variable((1, 2, 6, 6))
    y = PF.affine(F.relu(PF.convolution(x, 3, (3, 3))), 3)
    network = Network("n", {"x": x}, {"y": y})
    writer.save_folder(folder / "s", network)
    writer.save_meta(folder / "m.meta", network)
    nn.clear_parameters()

    def read(path: Path) -> None:
        file = folder / "s" if path.is_relative_to(folder / "s") else folder / "m.meta"
        read_model([str(file)])[0].network().run({"x": np.zeros((1, 2, 6, 6), np.float32)})

    files = [p for p in folder.rglob("*") if p.is_file()]
    return sorted(files), read


KINDS: dict[str, Callable[[Path], tuple[list[Path], Reader]]] = {
    "nnp": nnabla(".nnp", include_solver_state=True),
    "nntxt": nnabla(".nntxt", include_params=True, include_solver_state=True),
    "protobuf": nnabla(".protobuf", include_params=True, include_solver_state=True),
    "parameters": parameters,
    "parameters in C++": parameters_in_cpp,
    "networks in C++": networks_in_cpp,
    "states": states,
    "onnx": networks_onnx,
    "weights": weights,
    "programs": programs,
    "runtime": runtime,
    "frozen graphs": frozen_graphs,
    "lite": lite,
    "saved models": saved_models,
    "tables": tables,
    "caches": caches,
}


def complaints(kind: str, count: int, seed: int, folder: Path, first: int) -> Iterator[str]:
    """What was not as it should be, and at the end how many reads went well."""
    paths, read = KINDS[kind](folder)
    good = {path: path.read_bytes() for path in paths}
    start = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (start + MEMORY, start + MEMORY))
    fine = 0
    for i in range(first, count):
        rng = np.random.default_rng((seed, i))
        path = paths[int(rng.integers(len(paths)))]
        path.write_bytes(damaged(good[path], rng))
        if kind != "states":
            nn.clear_parameters()
        signal.alarm(SECONDS)
        try:
            with np.errstate(all="ignore"):
                read(path)
            fine += 1
        except FileNotFoundError as error:  # a name in the file has become another one
            if folder.name not in str(error):
                yield f"{i}: {path.name}: not named: {error}"
        except (ValueError, NotImplementedError) as error:
            text = str(error)
            if UNCLEAN.search(text):
                yield f"{i}: {path.name}: unclean: {text}"
            elif path.name not in text and folder.name not in text:
                yield f"{i}: {path.name}: not named: {type(error).__name__}: {text}"
            if kind not in ("states", "onnx") and nn.get_parameters(grad_only=False):
                yield f"{i}: {path.name}: parameters were changed before: {text}"
        except BaseException as error:
            yield f"{i}: {path.name}: {type(error).__name__}: {error}"
        signal.alarm(0)
        path.write_bytes(good[path])
    yield f"{fine} of {count} were read"


class TooLong(BaseException):
    """Raised by the clock; no OSError as TimeoutError is, which readers may take for another."""


def _too_long(*_: Any) -> None:
    raise TooLong(f"more than {SECONDS} s")


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, _too_long)
    kind, count, seed, folder, *first = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    nn.logger.setLevel("ERROR")
    for line in complaints(
        kind, int(count), int(seed), Path(folder), int(first[0]) if first else 0
    ):
        print(line, flush=True)
