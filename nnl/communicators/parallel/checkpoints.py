# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of which every rank writes its part.

    folder/step-00000100/rank-00000.safetensors   what rank 0 stores: name -> array
                         rank-00001.safetensors
                         index.json               which part of what lies where
    folder/.step-00000200.parts/                  one that is being written

A rank writes its file under another name and renames it; when all are there, rank 0 writes the
index and gives the folder its name. So a folder with that name is whole, whenever a job is killed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nnl.communicators.mpi import timeout_s
from nnl.communicators.parallel.layout import Layout, block_index, layout_of, with_pieces
from nnl.communicators.parallel.mesh import Mesh
from nnl.core.arguments.annotations import shown
from nnl.core.graph.variable import Variable
from nnl.core.ops import random as nnl_random
from nnl.core.parameters import safetensors
from nnl.core.parameters.atomic import replacing
from nnl.core.parameters.parameter import get_parameters
from nnl.solvers.base import Solver

VERSION = 1
INDEX, FILE, STEP, PARTS = "index.json", "rank-{:05}.safetensors", "step-{:08}", ".step-{:08}.parts"
STATE = "//"  # between the names of a parameter and of its state
LOOK_S = 0.02  # between two looks whether the files of the other ranks are there

Array = np.ndarray[Any, Any]


class Checkpoints:
    """Checkpoints of a job in a folder that all ranks see: parameters, states, generators.

    They are loaded by the same mesh, bit for bit, or by any other: more ranks, fewer, or one.

    Args:
        folder: Made if missing.
        mesh: Of the job.
        solver: One, or several by name; each with its parameters, after C.shard.
        keep: How many of the latest checkpoints stay.
    Raises:
        ValueError: keep is less than 1.
    Example:
        >>> import tempfile
        >>> w = PF.get_parameter_or_create("ex_saved", (2,), I.ConstantInitializer(3))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpoints = C.Checkpoints(folder, C.Mesh())
        ...     checkpoints.save(100, {"epoch": 2})
        ...     w.d = 0
        ...     checkpoints.load(), w.d.tolist()
        ((100, {'epoch': 2}), [3.0, 3.0])
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        mesh: Mesh,
        solver: Solver | Mapping[str, Solver] | None = None,
        keep: int = 2,
    ) -> None:
        if type(keep) is not int or keep < 1:
            raise ValueError(f"Checkpoints: keep is {shown(keep)}, wanted a number >= 1")
        self.folder, self.mesh, self.keep = Path(folder), mesh, keep
        self.rank, self.size = mesh.comm.rank, mesh.comm.size
        given = {} if solver is None else {"": solver} if isinstance(solver, Solver) else solver
        self.solvers = dict(given)
        self._thread: threading.Thread | None = None  # that runs the job
        self._job: Any = None
        self.folder.mkdir(parents=True, exist_ok=True)

    def steps(self) -> list[int]:
        """The steps that there are whole checkpoints of."""
        found = [re.fullmatch(r"step-(\d{8,})", p.name) for p in self.folder.iterdir()]
        return sorted(int(m[1]) for m in found if m and (self.folder / m[0] / INDEX).is_file())

    # ---- saving ----

    def save(self, step: int, extra: Mapping[str, Any] | None = None, wait: bool = True) -> None:
        """Write a checkpoint; all ranks call this.

        Args:
            step: Its number. One that is there already is replaced.
            extra: What else is to be known when going on, as for JSON; that of rank 0 counts.
            wait: Until it is whole. Without, a copy is made at once and written by a thread; the
                next call of save, load or wait waits for it.
        Raises:
            OSError: Some rank could not write, which all are told.
            CommunicatorError: Another rank saves another step, or takes too long.
        """
        self.wait()
        if type(step) is not int or step < 0:
            raise ValueError(f"save: step is {shown(step)}, wanted a number >= 0")
        text = json.dumps(dict(extra or {}))
        parts = self.folder / PARTS.format(step)
        error = ""
        try:
            if self.rank == 0:
                for left in self.folder.glob(".step-*"):  # by a job that was killed, a full disk
                    shutil.rmtree(left, ignore_errors=True)
                parts.mkdir()
        except OSError as e:
            error = str(e)
        # the name of this save: files of another one are told from its own
        key = self._meet(f"Checkpoints.save({step})", error, os.urandom(8).hex())
        arrays, described = self._mine()
        described |= {"save": key, "random": nnl_random.get_state()}
        given = parts / FILE.format(self.rank), arrays, {"nnl": json.dumps(described)}
        write = partial(safetensors.save, *given)
        if not wait:
            write = partial(safetensors.write_packed, given[0], safetensors.packed(*given))
        job = _Job(self, step, key, text, write)
        self._thread = threading.Thread(target=job.run)
        self._job = job
        self._thread.start()
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait for a checkpoint that a thread writes; all ranks call this.

        Raises:
            OSError: As save().
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._meet(f"the end of Checkpoints.save({self._job.step})", self._job.error)

    def _meet(self, call: str, error: str, key: str = "") -> str:
        """What rank 0 gives as key.

        Raises:
            OSError: Some rank has given an error, on all of them.
        """
        told = json.dumps([key, error[:1000]]).encode()
        said = [json.loads(b) for b in self.mesh.comm.meet(call, told)]
        failed = [f"rank {k}: {e}" for k, (_, e) in enumerate(said) if e]
        if failed:
            raise OSError(f"{call}: {'; '.join(failed)}")
        return str(said[0][0])

    def _stored(self) -> dict[str, tuple[Variable, Layout]]:
        """All arrays by name, with how they lie."""
        found: dict[str, tuple[Variable, Layout]] = {
            k: (v, layout_of(v)) for k, v in get_parameters(grad_only=False).items()
        }
        known = {v.data for v, _ in found.values()}
        for name, solver in self.solvers.items():
            params = solver.get_parameters()
            for key, v in params.items():
                if v.data not in known:  # in no scope, and other solvers' may have the same name
                    found[f"{key}{STATE}{name}"] = v, layout_of(v)
            for key, state in solver.get_states().items():
                layout = layout_of(params[key])
                if solver.split_over is not None:
                    layout = with_pieces(layout, self.mesh.shard, self.mesh.data, False)
                for kind, v in state.pstate.items():
                    found[f"{key}{STATE}{name}{STATE}{kind}"] = v, layout
        return found

    def _mine(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """The arrays that this rank writes, and what they are parts of."""
        arrays, parts = {}, {}
        for key, (v, layout) in self._stored().items():
            if self._writes(layout):
                arrays[key] = v.d
                parts[key] = _described(layout)
        solvers = {
            name: {
                "learning_rate": s.learning_rate(),
                "t": {key: state.t for key, state in s.get_states().items()},
            }
            for name, s in self.solvers.items()
        }
        return arrays, {"parts": parts, "solvers": solvers}

    def _writes(self, layout: Layout) -> bool:
        """Whether this rank is the first of those that store the same."""
        spread = [a.name for a in layout.axes()]
        mesh = self.mesh
        return all(
            a.place == 0 for a in (mesh.data, mesh.shard, mesh.model) if a.name not in spread
        )

    # ---- loading ----

    def load(self, step: int | None = None) -> tuple[int, dict[str, Any]] | None:
        """Read a checkpoint into the parameters that exist and the solvers' states.

        Args:
            step: Which one; the latest if left out.
        Returns:
            Its step and what was saved as `extra`; None if there is no checkpoint.
        Raises:
            FileNotFoundError: There is none of this step, or a file of it is missing.
            ValueError: It lacks a parameter, has one of another shape, or holds files of different
                saves. Nothing is changed then.
        """
        self.wait()
        steps = self.steps()
        said = self.mesh.comm.meet("Checkpoints.load()", json.dumps(steps[-64:]).encode())
        steps = json.loads(said[0])  # what rank 0 sees
        if step is None and not steps:
            return None
        step = steps[-1] if step is None else step
        saved = Saved(self.folder / STEP.format(step))
        own = {key: (v, saved.read(key, layout)) for key, (v, layout) in self._stored().items()}
        times = saved.solvers(self.solvers)
        for v, value in own.values():
            v.d[...] = value
        for name, solver in self.solvers.items():
            solver.set_learning_rate(times[name][0])
            states = solver.get_states()
            for key, state in states.items():
                state.t = times[name][1][key]
            solver.set_states(states)
        if saved.ranks == self.size:
            nnl_random.set_state(saved.random(self.rank))
        return step, saved.extra


class _Job:
    """What one rank does for a checkpoint after its arrays have been taken."""

    def __init__(
        self, owner: Checkpoints, step: int, key: str, extra: str, write: Callable[[], None]
    ) -> None:
        self.owner, self.step, self.key, self.extra = owner, step, key, extra
        self.write = write
        self.parts = owner.folder / PARTS.format(step)
        self.error = ""  # how it has ended

    def run(self) -> None:
        """Write the checkpoint, and on rank 0 finish it."""
        rank = self.owner.rank
        try:
            self.write()
            if rank == 0:
                self._finish()
        except Exception as error:  # whatever it is, the others wait for this rank
            try:
                (self.parts / f"failed-{rank}").touch()
            except OSError:
                pass  # rank 0 waits in vain, and says that
            self.error = f"{type(error).__name__}: {error}"

    def _finish(self) -> None:
        owner, size = self.owner, self.owner.size
        missing = {k: self.parts / FILE.format(k) for k in range(size)}
        end = time.monotonic() + timeout_s() * 10
        while missing := {k: p for k, p in missing.items() if not p.is_file()}:
            failed = [k for k in missing if (self.parts / f"failed-{k}").exists()]
            if failed or time.monotonic() > end:
                raise OSError(f"no file of rank {(failed or list(missing))[0]}")
            time.sleep(LOOK_S)
        index = {
            "version": VERSION,
            "step": self.step,
            "save": self.key,
            "mesh": owner.mesh.shape,
            "files": [FILE.format(k) for k in range(size)],
            "extra": json.loads(self.extra),
        }
        with replacing(self.parts / INDEX) as temporary:
            temporary.write_text(json.dumps(index, indent=1), "utf-8")
        whole = owner.folder / STEP.format(self.step)
        if whole.exists():
            _remove(whole)
        os.replace(self.parts, whole)
        for step in owner.steps()[: -owner.keep]:
            if step != self.step:
                _remove(owner.folder / STEP.format(step))


def _remove(folder: Path) -> None:
    """Remove a checkpoint: with another name first, as a kill may leave a part of it."""
    gone = folder.with_name(f".{folder.name}.old")
    os.replace(folder, gone)
    shutil.rmtree(gone, ignore_errors=True)


class Saved:
    """A checkpoint to read from.

    Raises:
        FileNotFoundError: It, or one of its files, is not there.
        ValueError: It is of a later version, or its files are of different saves.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / INDEX
        if not path.is_file():
            raise FileNotFoundError(f"load: there is no checkpoint {folder}")
        try:
            index = json.loads(path.read_text("utf-8"))
            version, files, self.extra = index["version"], index["files"], index["extra"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"load: {path} is no index of a checkpoint: {error}") from error
        if version != VERSION:
            raise ValueError(f"load: {path} is of version {version}, wanted {VERSION}")
        self.ranks = len(files)
        self.described: list[dict[str, Any]] = []
        self.where: dict[str, list[tuple[Any, Array, Any]]] = {}
        for name in files:
            file = folder / Path(name).name
            if not file.is_file():
                raise FileNotFoundError(f"load: {folder} lacks {file.name}")
            data = np.memmap(file, np.uint8, "r")
            entries, meta = safetensors.read_header(data, str(file))
            try:
                described = json.loads(meta["nnl"])
                if described["save"] != index["save"]:
                    raise ValueError(f"load: {file} is of another save than {path}")
                self.described.append(described)
                for key, entry in entries.items():
                    self.where.setdefault(key, []).append((described["parts"][key], data, entry))
            except (KeyError, TypeError) as error:
                raise ValueError(f"load: {file} is no part of a checkpoint: {error}") from error

    def read(self, key: str, layout: Layout) -> Array:
        """What a rank stores of an array by its layout.

        Raises:
            ValueError: There is no such array, it has another shape, or a part of it is missing.
        """
        found = self.where.get(key)
        if found is None:
            raise ValueError(f"load: {self.folder} has no {key!r}")
        shape = tuple(found[0][0]["shape"])
        if shape != layout.shape:
            raise ValueError(
                f"load: {key!r} has the shape {shape} in {self.folder}, wanted {layout.shape}"
            )
        own = _described(layout)
        for part, data, entry in found:
            if part == own:
                return _array(data, entry)
        whole = np.empty(shape, _array(*found[0][1:]).dtype)
        filled = 0
        for block in _by_block(found):
            at = block_index(shape, block[0][0]["split"])
            view, pieces = whole[at], block[0][0]["pieces"]
            if pieces is not None and len(block) != pieces[0]:
                raise ValueError(f"load: {self.folder} lacks pieces of {key!r}")
            flat = np.concatenate([_array(d, e).reshape(-1) for _, d, e in block])
            whole[at] = flat[: view.size].reshape(view.shape)
            filled += view.size
        if filled != whole.size:
            raise ValueError(f"load: {self.folder} lacks parts of {key!r}")
        return layout.cut(whole)

    def solvers(self, wanted: Mapping[str, Solver]) -> dict[str, tuple[float, dict[str, int]]]:
        """{name: (learning rate, {parameter: its number of updates})}."""
        times: dict[str, tuple[float, dict[str, int]]] = {}
        for name, solver in wanted.items():
            t: dict[str, int] = {}
            rate = None
            for described in self.described:
                said = described["solvers"].get(name)
                if said is not None:
                    rate = said["learning_rate"]
                    t |= said["t"]
            lacking = [key for key in solver.get_parameters() if key not in t]
            if rate is None or lacking:
                what = f"steps of {lacking[0]!r}" if lacking else f"solver {name!r}"
                raise ValueError(f"load: {self.folder} has no {what}")
            times[name] = rate, t
        return times

    def random(self, rank: int) -> dict[str, Any]:
        """The generators of a rank."""
        found: dict[str, Any] = self.described[rank]["random"]
        return found


def _described(layout: Layout) -> dict[str, Any]:
    """A part of an array, for JSON: its place along each split axis, and among the pieces."""
    over = layout.pieces
    return {
        "shape": list(layout.shape),
        "split": [[s.axis, s.over.size, s.over.place, s.groups] for s in layout.split],
        "pieces": None if over is None or over.size == 1 else [over.size, over.place],
    }


def _array(data: Array, entry: safetensors.Entry) -> Array:
    import ml_dtypes  # noqa: F401  (numpy knows bfloat16 by it)

    found: Array = data[entry.begin : entry.end].view(np.dtype(entry.dtype)).reshape(entry.shape)
    return found


def _by_block(found: list[Any]) -> list[list[Any]]:
    """The parts of one array, those of a block together and in order, each once: several stages
    may have the same."""
    blocks: dict[str, dict[int, Any]] = {}
    for part in found:
        _, place = part[0]["pieces"] or (1, 0)
        blocks.setdefault(json.dumps(part[0]["split"]), {})[place] = part
    return [[b[place] for place in sorted(b)] for b in blocks.values()]
