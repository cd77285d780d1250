# SPDX-License-Identifier: Apache-2.0
"""Files of programs, .nnlp: programs that share arrays, read without copies and run.

A file is a safetensors file. The tensor `nnl.program` holds UTF-8 JSON: the version of the format
and the programs by name (see program_data). What parameters, states and constants hold is in the
tensors of their names. A language model has its tokenizer and templates, JSON too, in the tensor
`nnl.language` (see nnl.models.huggingface.stored). Kernels for a device, JSON again, are in the
tensor `nnl.opencl` (see device_kernels). The metadata has the format, its version, the
CRC-32 of the JSON, which who edits that leaves out, and as JSON the names of parameters with
whether they are trained.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np

from nnl.core.arguments.annotations import numbers
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import Spec
from nnl.core.parameters.safetensors import read_header
from nnl.core.parameters.safetensors import save as save_arrays
from nnl.core.settings.context import SPACES
from nnl.core.settings.context import STATE as MODES
from nnl.graph.lowering.binding import Binding
from nnl.graph.open_sizes.at_most import rows_of
from nnl.graph.open_sizes.native import Models, models_of
from nnl.graph.plan.plan import Plan
from nnl.graph.printing.profile import PROFILES
from nnl.graph.program.open_program import check_open, sizes_of
from nnl.graph.program.program import INPUT, Program, verify
from nnl.graph.program.program_data import (
    VERSION,
    Damaged,
    dtype_of,
    from_dict,
    to_dict,
    version_of,
)
from nnl.graph.program.turns import Runners, Turns
from nnl.graph.saving.precision import in_bfloat16, narrow_arrays, narrow_type

TENSOR = "nnl.program"
TEXTS = ("nnl.language", "nnl.opencl")
FORMAT = "nnlp"
RUNNERS = 8  # plans that stay, of all programs of a file and sizes together


def write(
    path: str | os.PathLike[str],
    programs: Mapping[str, Program],
    arrays: Mapping[str, NdArray],
    parameters: Mapping[str, bool],
    language: bytes = b"",
    kernels: bytes = b"",
) -> None:
    """Write programs, and the arrays that their parameters, states and constants are, by name.

    Args:
        parameters: {name: whether it is trained}, of the arrays that a file of parameters has.
        language, kernels: What their tensors say; nothing is no tensor.
    Raises:
        ValueError: The name of the file does not end in ".nnlp", which says what is in it.
    """
    if not os.fspath(path).lower().endswith(f".{FORMAT}"):
        raise ValueError(f"{os.fspath(path)}: programs are saved in files of the name *.{FORMAT}")
    version = max(map(version_of, programs.values()), default=1)  # older readers take it
    data = {"version": version, "programs": {k: to_dict(p) for k, p in programs.items()}}
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    tensors = {name: nd.read("host") for name, nd in arrays.items()}
    tensors[TENSOR] = np.frombuffer(text, np.uint8)
    for name, said in zip(TEXTS, (language, kernels), strict=True):
        tensors |= {name: np.frombuffer(said, np.uint8)} if said else {}
    metadata = {
        "format": FORMAT,
        "version": str(version),
        "crc32": str(zlib.crc32(text)),
        "parameters": json.dumps(dict(parameters), ensure_ascii=False),
    }
    save_arrays(path, tensors, metadata)


class Programs:
    """Programs from a file, and the arrays that they share.

    The arrays are the file's memory, mapped: a page is read when it is first used, and copied when
    it is first written. The file never changes.

    Attributes:
        where: The file.
        arrays: Parameters, states and constants by name.
        language: What the file says of text, as JSON; empty where it says nothing.
    """

    def __init__(self, path: str | os.PathLike[str], precision: str = "float32") -> None:
        self.where = os.fspath(path)
        self._narrow = narrow_type(precision, "load_program")
        with open(path, "rb") as f:
            if os.fstat(f.fileno()).st_size == 0:
                raise ValueError(f"{self.where}: the file is empty")
            self._stamp = os.fstat(f.fileno())
            self._map = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)
        bytes_ = np.frombuffer(self._map, np.uint8)
        try:
            entries, metadata = read_header(bytes_, self.where)
        except ValueError as e:
            if self.where.lower().endswith(".nnlp"):
                raise ValueError(f"{e}; the file is damaged, or not complete") from None
            reason = str(e).removeprefix(f"{self.where}: ")
            raise ValueError(
                f"{self.where}: it is no program: they are in .nnlp files, which save_program and "
                f"nnl convert write ({reason})"
            ) from None
        self._check_version(metadata.get("version", ""), TENSOR in entries)
        begin, end, *_ = entries.pop(TENSOR)
        text = bytes_[begin:end].tobytes()
        texts = {k: entries.pop(k) for k in TEXTS if k in entries}
        said = {k: bytes_[e.begin : e.end].tobytes() for k, e in texts.items()}
        self.language, self._kernels = (said.get(k, b"") for k in TEXTS)
        if metadata.get("crc32", str(zlib.crc32(text))) != str(zlib.crc32(text)):
            raise ValueError(f"{self.where}: damaged: {TENSOR} has another CRC-32 than it had")
        try:
            data = json.loads(text)
            version = metadata["version"]
            if str(data["version"]) != version:
                raise Damaged(f"its version is {version}, and {data['version']!r:.40} in {TENSOR}")
            self._data: dict[str, Any] = dict(data["programs"])
            self._programs = {str(k): from_dict(d) for k, d in self._data.items()}
            for name, program in self._programs.items():
                if version_of(program) > int(version):
                    what = "strings" if program.words.names else "open sizes"
                    raise Damaged(
                        f"program {name!r} has {what}, which are of version {version_of(program)}"
                    )
                if program.dims:
                    check_open(program)
            self._parameters: dict[str, bool] = dict(json.loads(metadata.get("parameters", "{}")))
        except Damaged as e:
            raise ValueError(f"{self.where}: damaged: {e}") from None
        except (KeyError, TypeError, ValueError, RecursionError) as e:
            if str(e).startswith(self.where):
                raise
            raise ValueError(f"{self.where}: damaged: {TENSOR} is no program: {e}") from None
        self.arrays: dict[str, NdArray] = {}
        self._entries = entries
        for name, entry in entries.items():
            self.arrays[name] = self._mapped(name, entry)
        for program in self._programs.values():
            self._check_names(program)
        if self._narrow is not None:
            self._programs = {k: in_bfloat16(p) for k, p in self._programs.items()}
            self._data = {k: to_dict(p) for k, p in self._programs.items()}
            narrow_arrays(self.arrays, self._programs)
        self._inputs = {
            k: [p.slots[i].name for i in p.inputs] for k, p in self._programs.items()
        }  # of each program
        self._runners: OrderedDict[tuple[Any, ...], Runners] = OrderedDict()
        self._models: dict[tuple[Any, ...], Models | None] = {}
        self._turns, self._lock = Turns(), Lock()

    def _check_version(self, version: str, is_program: bool) -> None:
        if not is_program:
            raise ValueError(f"{self.where}: has no tensor {TENSOR!r}: it is no program")
        if version.isdecimal() and int(version) > VERSION:
            raise ValueError(
                f"{self.where}: has version {version} of the format, this nnl reads {VERSION}: "
                "a newer nnl is needed"
            )
        if version not in map(str, range(1, VERSION + 1)):
            raise ValueError(f"{self.where}: damaged: its version is {version!r:.40}")

    def _mapped(self, name: str, entry: Any) -> NdArray:
        where = f"{self.where}: {name!r}"
        try:
            spec = Spec.of(entry.shape, dtype_of(entry.dtype)).checked()
        except ValueError as e:
            raise ValueError(f"{where}: {e}") from None
        if spec.nbytes != entry.end - entry.begin:
            raise ValueError(f"{where}: {entry.end - entry.begin} bytes are not {spec}")
        if entry.begin % spec.dtype.itemsize:  # another program has written the file
            raw = np.frombuffer(self._map, np.uint8, spec.nbytes, entry.begin)
            array = raw.copy().view(spec.dtype).reshape(spec.shape)
        else:
            array = np.ndarray(spec.shape, spec.dtype, self._map, entry.begin)
        if entry.dtype == "bool" and array.size and array.view(np.uint8).max() > 1:
            raise ValueError(f"{where}: a boolean is neither 0 nor 1")
        return NdArray.holding(spec, "host", array)

    def _check_names(self, program: Program) -> None:
        inputs = [s.name for s in program.slots if s.role == INPUT]
        if len(set(inputs)) < len(inputs):
            raise ValueError(
                f"{self.where}: damaged: two of the inputs {sorted(inputs)} have one name"
            )
        for i, slot in enumerate(program.slots):
            if not i or not slot.stored:
                continue
            nd = self.arrays.get(slot.name)
            if nd is None:
                raise ValueError(f"{self.where}: damaged: there is no tensor {slot.name!r}")
            if nd.spec is not slot.spec:
                raise ValueError(
                    f"{self.where}: damaged: {slot.name!r} is {nd.spec}, wanted {slot.spec}"
                )

    # ---- looking ----

    def __iter__(self) -> Any:
        return iter(self._programs)

    def __len__(self) -> int:
        return len(self._programs)

    def __getitem__(self, name: str) -> Program:
        if name not in self._programs:
            raise KeyError(f"{self.where} has the programs {list(self)}, not {name!r}")
        return self._programs[name]

    def text(self) -> str:
        """All programs as text; see Program.text."""
        return "\n\n".join(f"program {k}\n{p.text()}" for k, p in self._programs.items())

    def inputs(self, program: str | None = None) -> dict[str, Spec]:
        """The inputs of a program by name."""
        slots = self[self._chosen(program)].slots
        return {s.name: s.spec for s in slots if s.role == INPUT}

    def outputs(self, program: str | None = None) -> dict[str, Spec]:
        """The outputs of a program by name."""
        found = self[self._chosen(program)]
        hidden = {count for count, _ in found.counts.values()}
        made = {k: i for k, i in found.outputs.items() if k not in hidden}
        return {name: found.slots[i].spec for name, i in made.items()}

    def costs(self, program: str | None = None) -> list[tuple[str, int, int]]:
        """The op of each step, its floating-point operations, and the bytes it reads and writes."""
        steps = self._data[self._chosen(program)]["steps"]
        found = [(s["op"], s.get("flops", 0), s.get("bytes", 0)) for s in steps]
        for op, *cost in found:
            if any(type(n) is not int for n in cost):
                raise ValueError(f"{self.where}: damaged: {op} costs {cost!r:.60}")
        return found

    def data(self, program: str | None = None) -> dict[str, Any]:
        """A program as data, as `to_dict` has written it."""
        return dict(self._data[self._chosen(program)])

    def _chosen(self, name: str | None) -> str:
        if name is None and len(self) > 1:
            raise ValueError(f"{self.where} has the programs {list(self)}: say which one")
        return name if name is not None else next(iter(self))

    # ---- running ----

    def run(self, program: str | None = None, /, **inputs: Any) -> dict[str, np.ndarray[Any, Any]]:
        """Run a program on the backends of the current context.

        Args:
            program: Its name, where the file has several.
            inputs: A value for each of its inputs, by name.
        Returns:
            The outputs by name. Parameters and states that the program writes keep their new values
            for the next run, see `arrays`; the file stays as it is.

        Threads may run programs of one file at the same time. Those that write parameters or states
        run one after the other, and no other runs meanwhile.

        Raises:
            TypeError: An input is missing, or unknown. ValueError: It has another shape.
        """
        name = self._chosen(program)
        words, where = self[name].words, f"{self.where}: {name}"
        if not words.names:
            return self._run(name, where, inputs)
        return words.end(where, self._run(name, where, words.begin(where, inputs)))

    def _run(
        self, name: str, where: str, inputs: Mapping[str, Any]
    ) -> dict[str, np.ndarray[Any, Any]]:
        if not self[name].dims:
            outputs: dict[str, np.ndarray[Any, Any]] = self.runner(name).run(inputs)
            return outputs
        check_names(where, inputs, self._inputs[name])
        values = {k: numbers(f"{where}: {k}", v, "numbers") for k, v in inputs.items()}
        models = self._models_of(name)
        found = models.run(values) if models is not None else None
        if found is None:
            shapes = tuple([values[k].shape for k in self._inputs[name]])
            found = self._for_shapes(name, shapes).run(values)
            if not PROFILES:  # the library does not know something
                self._models[name, MODES.target] = None
        return found

    def reset(self, *names: str) -> None:
        """Give arrays the values of the file again: let a stream begin anew.

        Args:
            names: Of parameters, states or constants; all that the programs write if none is named.
        Raises:
            KeyError: There is none of that name. ValueError: The file is another one by now.
        """
        for name in names:
            if name not in self.arrays:
                raise KeyError(f"{self.where}: there is no {name!r} to reset")
        found = self._programs.values()
        written = {p.slots[i].name: None for p in found for i in p.written() | {*p.carries}}
        with self._turns.alone(), open(self.where, "rb") as f:
            now, then = os.fstat(f.fileno()), self._stamp
            if (now.st_ino, now.st_mtime_ns) != (then.st_ino, then.st_mtime_ns):
                raise ValueError(f"{self.where}: reset: the file has changed since it was opened")
            for name in names or [n for n in written if n in self.arrays]:
                nd, entry = self.arrays[name], self._entries[name]
                f.seek(entry.begin)
                raw = np.frombuffer(f.read(nd.spec.nbytes), nd.spec.dtype)
                nd.write("host", raw.reshape(nd.spec.shape).copy())

    def _models_of(self, name: str) -> Models | None:
        key = name, MODES.target
        if self._narrow is not None:  # the file that the library would read has other types
            return None
        if key not in self._models:
            with self._lock:
                self._models[key] = models_of(
                    self.where,
                    self._stamp,
                    name,
                    self[name],
                    self.arrays,
                    MODES.target,
                    self._turns,
                )
        return self._models[key]

    def runner(self, program: str | None = None, sizes: Mapping[str, int] | None = None) -> Runners:
        """What runs a program on the backends of the current context; made once for these.

        Args:
            sizes: Of its open dims; those of its examples where nothing is said.
        """
        name, target = self._chosen(program), MODES.target
        key = name, target, *sorted((sizes or {}).items())

        def make() -> Runner:
            return Runner(self, name, target, sizes)

        return self._kept(key, lambda: Runners(make, self._turns, self[name].changes))

    def _for_shapes(self, name: str, shapes: tuple[Any, ...]) -> Runners:
        def make() -> Runners:
            try:
                sizes = sizes_of(self[name], dict(zip(self._inputs[name], shapes, strict=True)))
                return self.runner(name, sizes)
            except ValueError as e:
                raise ValueError(f"{self.where}: {name}: {e}") from None

        return self._kept((name, MODES.target, shapes), make)

    def _kept(self, key: tuple[Any, ...], make: Callable[[], Runners]) -> Runners:
        with self._lock:
            found = self._runners.get(key)
            if found is not None:
                self._runners.move_to_end(key)
                return found
        found = make()
        with self._lock:
            found = self._runners.setdefault(key, found)
            self._runners.move_to_end(key)
            while len({id(r) for r in self._runners.values()}) > RUNNERS:
                self._runners.popitem(last=False)
        return found

    def fresh(self, name: str, sizes: Mapping[str, int] | None = None) -> Program:
        """A copy of a program that may be changed; at these sizes of its dims."""
        program = self[name]
        if not program.dims:
            return from_dict(self._data[name])
        return program.at({n: d.example for n, d in program.dims.items()} | dict(sizes or {}))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the programs with what the arrays hold now."""
        with self._turns.alone():
            kernels = self._kernels if self._narrow is None else b""
            write(path, self._programs, self.arrays, self._parameters, self.language, kernels)


def check_names(where: str, given: Iterable[str], wanted: Iterable[str]) -> None:
    """
    Raises:
        TypeError: Other inputs are given than there are.
    """
    if set(given) != set(wanted):
        raise TypeError(f"{where}: run got the inputs {sorted(given)}, wanted {sorted(wanted)}")


class Runner:
    """A program of a file as a plan, on the backends of one target, for one thread at a time."""

    def __init__(
        self,
        programs: Programs,
        name: str,
        target: Any,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        self.where = f"{programs.where}: {name}"
        program, binding = programs.fresh(name, sizes), Binding()
        program.run_on(target)
        self.inputs: dict[str, NdArray] = {}
        for i, slot in enumerate(program.slots):
            if slot.role == INPUT:
                binding.arrays[i] = self.inputs[slot.name] = NdArray.unwritten(slot.spec)
            elif i and slot.stored:
                binding.arrays[i] = programs.arrays[slot.name]
            if i in binding.arrays:
                slot.memory = binding.memory_of(binding.arrays[i])
        try:
            verify(program)
            self.plan = Plan.of(program, binding)
        except (AssertionError, ValueError, TypeError) as e:
            raise ValueError(f"{programs.where}: damaged: {e}") from None

    def run(self, values: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
        if values.keys() != self.inputs.keys():
            check_names(self.where, values, self.inputs)
        for name, nd in self.inputs.items():
            value = numbers(f"{self.where}: {name}", values[name], "numbers")
            if value.shape != nd.spec.shape:
                raise ValueError(
                    f"{self.where}: {name} has the shape {value.shape}, wanted {nd.spec.shape}"
                )
            nd.write("host", np.ascontiguousarray(value, nd.spec.dtype).reshape(nd.spec.shape))
        plan = self.plan
        plan.run_both()
        found = {}
        for name, i in plan.program.outputs.items():
            space, buf = plan.published(i)
            found[name] = np.array(SPACES[space].to_host(buf))
        for name, (count, axis) in plan.program.counts.items():
            found[name] = rows_of(f"{self.where}: {name}", found[name], found[count], axis)
        for count, _ in plan.program.counts.values():
            found.pop(count, None)
        for i, o in plan.program.carries.items():
            nd = plan.binding.array(plan.program, i)
            if o:
                space, buf = plan.published(o)
                nd.write(space, buf.copy())
            else:
                nd.zero()
        return found


def load_program(path: str | os.PathLike[str], precision: str = "float32") -> Programs:
    """Open a file of programs, .nnlp.

    Args:
        path: What `save_program`, `save` of a compiled function, or nnl-convert has written.
        precision: "bf16": weights and results of products, and what follows from these, have 16
            bits; each function computes in float32 inside. Inputs and outputs stay as they are.
            `save` of what this returns writes a file of half the size, which C++ runs as well.
    Returns:
        The programs; its arrays are mapped, not read.
    Raises:
        ValueError: The file is damaged, or of a newer version of the format.
        NotImplementedError: precision is "bf16", and a program trains.

    Example:
        >>> import nnl as nn
        >>> x = nn.Variable((2,))
        >>> nn.save_program("double.nnlp", {"y": x * 2}, {"x": x})
        >>> nn.load_program("double.nnlp").run(x=[1, 2])["y"]
        array([2., 4.], dtype=float32)
    """
    with _without_collections():
        return Programs(path, precision)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Put off garbage collections while objects are made that all stay.

    One of them would go through all that the process has imported, and take longer than the rest.
    """
    if not gc.isenabled():  # also where another thread does the same
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
