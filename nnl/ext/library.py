# SPDX-License-Identifier: Apache-2.0
"""What plans and passes ask of a library of kernels, and what bindings of ops to them share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard

import numpy as np

from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import Spec
from nnl.core.ops.elementwise import is_elementwise, program_of
from nnl.core.ops.op import Attributes, Op

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = "fused_elementwise"  # the kernel that runs element-wise programs

# ---- how arrays are described ----

# Names of element types by the number that libraries know them by, nnl::DType in C++. By name:
# bfloat16 comes from ml_dtypes, which is imported only where it is used.
DTYPES = {
    name: i
    for i, name in enumerate(
        ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "uint16", "int32",
         "uint32", "int64", "uint64", "bool"]
    )
}  # fmt: skip
FLOATS = 4  # element types below this number are floating-point ones
# Whole numbers that loops over floats write, and those they read.
BYTES, READ = frozenset([4, 5]), frozenset([4, 5, 8])
# Orders of elements, which are memory spaces too: (N, spatial..., C), and weights in tiles of
# 16 x 16 maps. By number, nnl::Layout in C++.
HOST, CHANNELS_LAST, TILED = "host", "channels_last", "tiled"
LAYOUTS = {HOST: 0, CHANNELS_LAST: 1, TILED: 2}
TILE = 16
BFLOAT16 = "bfloat16"  # the memory space of copies of float32 values

ArraySpec: TypeAlias = tuple[tuple[int, ...], int, int]  # shape, number in DTYPES, in LAYOUTS
Specs: TypeAlias = list[ArraySpec | None]  # None for an input left out
Plain: TypeAlias = None | bool | int | float | str | tuple[int, ...] | tuple[float, ...]
Array: TypeAlias = Any  # of the library's memory: numpy's, or one that a device's module makes


def native_spec(spec: Spec | None, layout: int = 0) -> ArraySpec | None:
    """A spec as libraries take it, in an order of LAYOUTS; None for an absent input."""
    return None if spec is None else (spec.shape, DTYPES[spec.type_name], int(layout))


# ---- what a library is ----


@dataclass(frozen=True)
class Traits:
    """What is worth doing with a library, besides what it has kernels for.

    Attributes:
        places: What summaries call a step with a kernel, and one without.
        least_attention_bytes: Size of the weights from which on attention is one step.
        any_size: Whether programs are to be the same at all sizes: what passes do from some size on
            they do always, and say that size as the attribute "least".
        computes_again: Whether results of normalizations are computed again for backward instead of
            kept.
        takes_apart: Whether a step without a kernel runs as a few functions that say the same, if
            these have kernels.
        stores: Whether files of programs have its kernels; it is a StoringLibrary then.
    """

    places: tuple[str, str]
    least_attention_bytes: int
    computes_again: bool
    any_size: bool = False
    takes_apart: bool = False
    stores: bool = False


@dataclass(frozen=True)
class Abilities:
    """What the kernels of an op can do besides what its definition says. Inputs and outputs are
    given by position.

    Attributes:
        last_in, last_out: What they are fastest with channels-last; empty where they do not mind.
        tiled_in, tiled_out: Weights that may be in tiles.
        packs: Whether they take weights from pack_convolution.
        copies: Whether they read (a product) or write (an update) copies of weights in bfloat16.
        appends: Ops whose work they do after their own: batch_normalization by known statistics,
            then add2, then one of the others.
        most_rows: Rows of input 1 up to which they add faster than a step of its own; 0: any.
        adds_halves: Whether what they add may have another floating-point type than the result.
    """

    last_in: tuple[int, ...] = ()
    last_out: tuple[int, ...] = ()
    tiled_in: tuple[int, ...] = ()
    tiled_out: tuple[int, ...] = ()
    packs: bool = False
    copies: bool = False
    appends: tuple[str, ...] = ()
    most_rows: int = 0
    adds_halves: bool = False


class LibraryKernel(Protocol):
    """A call for arrays of certain shapes, types and orders."""

    @property
    def workspace(self) -> int:
        """Bytes that it may use as it likes while it runs."""

    def may_overwrite(self, out: int, input: int) -> bool:
        """Whether an output may be the memory of an input, both by position."""


class Memory(Protocol):
    """A piece of memory, alive as long as this object."""

    @property
    def address(self) -> int: ...


class LibraryPlan(Protocol):
    """Steps over numbered slots; some lie in an arena."""

    @property
    def arena(self) -> Memory: ...

    @property
    def times(self) -> Sequence[int]:
        """What each step took in its latest timed run, in ns."""

    @property
    def starts(self) -> Sequence[int]:
        """When each step started in its latest timed run, in ns."""

    def add(
        self,
        name: str,
        kernel: LibraryKernel,
        ins: Sequence[int],
        outs: Sequence[int],
        workspace: int,
    ) -> None:
        """Append a step; workspace is an offset in the arena, negative without one."""

    def bind_array(self, slot: int, array: Array) -> None:
        """Let a slot be this array, which the caller keeps alive, from now on."""

    def run(self, begin: int, end: int) -> None:
        """Run the steps from begin up to end."""

    def run_timed(self, begin: int, end: int) -> None:
        """Run the steps one by one, and note when each started and what it took."""

    def __len__(self) -> int: ...


class HostPlan(LibraryPlan, Protocol):
    """The same on the host, which does for many slots at once what plans do for one."""

    def bind_arrays(
        self,
        given: list[tuple[int, NdArray]],
        slots: list[Any],
        views: dict[int, list[int]],
        held: dict[int, int],
        seen: dict[int, int],
        holders: dict[int, int],
    ) -> list[tuple[int, NdArray]]:
        """Do for given slots what Binding does; those that are no usual ones are returned.

        Usual is a C-contiguous buffer that is there, and a slot without views.
        """

    def renew(self, slots: list[Any], buffers: Sequence[tuple[Any, ...]]) -> None:
        """Let slots be new memory.

        Args:
            buffers: (slot, shape, dtype, ((slot of a view, its shape), ...)) of each.
        """


class DevicePlan(LibraryPlan, Protocol):
    """The same on a device, for arrays that may be on the host.

    Attributes:
        written: Slots that steps change.
    """

    written: set[int]

    def follow(self, slot: int, nd: NdArray, space: str) -> Array:
        """The array of a given slot with what an array of ours holds now."""


class Executor(Protocol):
    """A thread that runs plans of the library, one at a time."""

    def start(
        self, plan: LibraryPlan, begin: int, end: int, copies: list[tuple[Array, Array]]
    ) -> None:
        """Begin to run the steps [begin, end), after copies (to, from) that are made in any case.

        The arrays are C-contiguous, and kept by the caller.
        """

    def stop(self) -> None:
        """Let that run end before its next step."""

    def wait(self) -> None:
        """Return when that run is over; raise what it has raised."""


class Library(Protocol):
    """The kernels of a memory space: the module in C++, or a device's."""

    @property
    def traits(self) -> Traits: ...

    def __hash__(self) -> int: ...

    def kernel_names(self) -> Sequence[str]:
        """Ops for which it has a kernel for some dtypes and shapes."""

    def abilities(self, op: str) -> Abilities:
        """What its kernels for an op can do besides what the definition says."""

    def kernel(
        self, op: str, attrs: dict[str, Plain], ins: Specs, outs: Specs
    ) -> LibraryKernel | None:
        """The kernel of an op for these arrays; None if there is none."""

    def control_kernel(self, program: str) -> LibraryKernel:
        """The kernel of the only step of a program, as JSON, which has programs inside.

        Raises:
            ValueError: A step inside has no kernel.
        """

    def packed_convolution_bytes(self, attrs: dict[str, Plain], ins: Specs, outs: Specs) -> int:
        """Size of the weights of a convolution packed for its kernel; 0 if it wants them as is."""

    def packed_bytes(self, op: str, attrs: dict[str, Plain], ins: Specs, outs: Specs) -> int:
        """Size of the weights, input 1, of another op, packed for its kernel; 0 as above."""

    def Plan(self, offsets: Sequence[int], arena_bytes: int) -> LibraryPlan:
        """Steps to be run over slots at these offsets; negative for one that lies elsewhere."""

    def python_step(self, call: Callable[[], object]) -> LibraryKernel:
        """A kernel that calls back."""

    def array_at(
        self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: Memory
    ) -> Array:
        """An array over memory that `owner` keeps."""


# What a kernel is asked for by: the name of an op, its attributes, inputs and outputs.
Asked: TypeAlias = tuple[str, dict[str, Plain], Specs, Specs]


class StoringLibrary(Library, Protocol):
    """A library whose kernels are texts, which files can have."""

    def stored_kernels(self, programs: Mapping[str, Sequence[Asked | None]]) -> dict[str, Any]:
        """The kernels of the steps of programs, as JSON has them; None for a step on the host."""


@cache
class AtAnySize:
    """A library as passes see it that rewrite open programs.

    Its kernels take any size: they decline those below "least" when the sizes are known.
    """

    def __init__(self, lib: Library) -> None:
        self._lib = lib

    @property
    def traits(self) -> Traits:
        return replace(self._lib.traits, any_size=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)

    def kernel(
        self, op: str, attrs: dict[str, Plain], ins: Specs, outs: Specs
    ) -> LibraryKernel | None:
        asked = {k: v for k, v in attrs.items() if k != "least"}
        return self._lib.kernel(op, asked, ins, outs)


@cache
def kernel_names(lib: Library | None) -> frozenset[str]:
    """Ops for which a library has a kernel for some dtypes and shapes; none without a library."""
    return frozenset(lib.kernel_names()) if lib is not None else frozenset()


def knows(lib: Library | None, op: str) -> bool:
    """Whether a library may have a kernel for an op: one of its own, or a program to run."""
    names = kernel_names(lib)
    return op in names or (PROGRAM in names and is_elementwise(op))


def request(
    lib: Library, op: str, attrs: Mapping[str, Plain], ins: Specs, outs: Specs
) -> tuple[str, dict[str, Plain]] | None:
    """The name and the attributes by which to ask a library for the kernel of an op.

    Without a kernel of its own, an element-wise op is asked for as its program. None: the library
    has nothing for these arrays.
    """
    if op in kernel_names(lib):
        return op, plain_attributes(attrs)
    given = [x for x in ins if x is not None]
    if len(outs) != 1 or outs[0] is None or not (outs[0][1] < FLOATS or outs[0][1] in BYTES):
        return None
    if len(given) != len(ins) or not ins or not (given[0][1] < FLOATS or given[0][1] in READ):
        return None
    shapes = [x[0] for x in given]
    found = program_of(op, attrs, shapes)
    if found is None:
        return None
    result = len(ins) + len(found.code) // 4 - 1
    plain: dict[str, Plain] = {
        "code": found.code, "constants": found.constants, "outputs": (result,),
    }  # fmt: skip
    if list(found.shapes) != shapes:
        rank = len(outs[0][0])
        plain["shapes"] = tuple([n for s in found.shapes for n in (1,) * (rank - len(s)) + s])
    return PROGRAM, plain


def plain_attributes(attrs: Mapping[str, object]) -> dict[str, Plain]:
    """Attribute values by name, as far as kernels take them."""
    return {k: v for k, v in attrs.items() if is_plain(v)}


def is_plain(value: object) -> TypeGuard[Plain]:
    """Whether a value is a number, a text, None, or a sequence of numbers."""
    if isinstance(value, tuple):
        return all(isinstance(v, (int, float)) for v in value)
    return value is None or isinstance(value, (bool, int, float, str))


# ---- ops as calls on arrays ----

Call: TypeAlias = Callable[..., Any]  # (arrays, out= where it takes that) -> an array or several


def is_list(op: Op, attrs: Attributes, in_specs: tuple[Spec | None, ...]) -> bool:
    """Whether callers of an op want a tuple, even of one array."""
    return op.variadic_out and isinstance(attrs.infer(*in_specs), tuple)


def into(call: Call, *bufs: Array, out: Array = None) -> Any:
    """Let a call that does not know out= take it."""
    y = call(*bufs)
    if out is None:
        return y
    out[...] = y
    return out


def at_first_call(make: Callable[[], Call]) -> Call:
    """The call that `make` gives, made when it is needed: what is recorded only never is, since
    plans take kernels whole."""
    made: Call | None = None

    def call(*bufs: Array, **kw: Array) -> Any:
        nonlocal made
        if made is None:
            made = make()
        return made(*bufs, **kw)

    return call


def cache_folder(name: str) -> Path:
    """NNL_CACHE_DIR/name, or nnl/name in the user's cache folder."""
    from pathlib import Path

    own = os.environ.get("NNL_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) / name if own else Path(base) / "nnl" / name
