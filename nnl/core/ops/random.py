# SPDX-License-Identifier: Apache-2.0
"""Random numbers: a counter-based generator for functions, numpy's RandomState for parameters.

A random function has a hidden input `rng`, an array of two uint64: key and counter. Its kernel
draws Philox 4x64-10 blocks of that key from that counter on, and advances the counter. So numbers
depend on (key, counter) only, whichever backend draws them and however often a plan is replayed.

Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np

from nnl.core.arguments.annotations import flag
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import Spec
from nnl.core.graph.node import Value
from nnl.core.graph.variable import Variable

__all__ = ["DEFAULT_SEED", "seed", "set_function_seed", "set_parameter_seed"]

Array = np.ndarray[Any, Any]

_STATE = Spec.of((2,), np.uint64)
DEFAULT_SEED = 313  # of initial parameter values, as in NNabla


def _leaf(key: int) -> Variable:
    nd = NdArray.holding(_STATE, "host", np.array([key, 0], np.uint64))
    return Variable.of_edge(Value.leaf(nd), nd)


class _Streams(threading.local):
    """What each thread draws from. The attributes of the class are for threads that begin.

    Attributes:
        functions: The stream of functions with seed=-1, of this thread alone. Before the thread
            seeds it, its key follows from the latest seed of the process and from how many threads
            have begun since.
        generator: Of initial parameter values. A thread that has none yet shares the latest one of
            the process from its first draw on; numpy locks it.
    """

    key = int.from_bytes(os.urandom(8), "little")
    numbers = itertools.count()
    pseed = DEFAULT_SEED
    latest: np.random.RandomState | None = None

    def __init__(self) -> None:
        self.functions = _leaf((self.key + (next(self.numbers) << 32)) % 2**64)
        self.generator: np.random.RandomState | None = None


STREAMS = _Streams()
_MAKING = threading.Lock()


class _Module(ModuleType):
    """Gives this module NNabla's names for the generator of the calling thread."""

    @property
    def prng(self) -> np.random.RandomState:
        """Where initial parameter values come from; it may be set to another one."""
        if STREAMS.generator is None:
            with _MAKING:
                if _Streams.latest is None:  # not before: importing numpy.random takes 30 ms
                    _Streams.latest = np.random.RandomState(_Streams.pseed)
                STREAMS.generator = _Streams.latest
        return STREAMS.generator

    @prng.setter
    def prng(self, generator: np.random.RandomState) -> None:
        STREAMS.generator = _Streams.latest = generator

    @property
    def pseed(self) -> int:
        """What it was seeded with."""
        return STREAMS.pseed


sys.modules[__name__].__class__ = _Module


def stream(seed: int) -> Variable:
    """The rng input of a random function: the thread's stream for -1, else one of its own."""
    return STREAMS.functions if seed < 0 else _leaf(seed)


def set_function_seed(seed_value: int) -> None:
    """Restart the stream that functions with seed=-1 draw from."""
    _Streams.key, _Streams.numbers = int(seed_value) % 2**64, itertools.count(1)
    STREAMS.functions.data.data[:] = (_Streams.key, 0)


def set_parameter_seed(seed_value: int) -> None:
    """Restart the generator of initial parameter values."""
    STREAMS.pseed = _Streams.pseed = seed_value
    STREAMS.generator = _Streams.latest = np.random.RandomState(seed_value)


_seed_functions, _seed_parameters = set_function_seed, set_parameter_seed


def seed(seed_value: int, set_function_seed: bool = True, set_parameter_seed: bool = True) -> None:
    """Make random functions and initial parameter values reproducible.

    Raises:
        ValueError: seed_value is outside [0, 2**32).
    Example:
        >>> def draw():
        ...     nn.seed(7)
        ...     with nn.auto_forward():
        ...         return F.rand(shape=(3,)).d
        >>> bool((draw() == draw()).all())
        True
    """
    try:
        seed_value = int(seed_value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"seed: seed_value is {seed_value!r}, wanted an int") from None
    if not 0 <= seed_value < 2**32:
        raise ValueError(f"seed: seed_value is {seed_value}, wanted 0 <= seed_value < 2**32")
    functions = flag("seed", "set_function_seed", set_function_seed)
    parameters = flag("seed", "set_parameter_seed", set_parameter_seed)
    if functions:
        _seed_functions(seed_value)
    if parameters:
        _seed_parameters(seed_value)


def get_state() -> dict[str, Any]:
    """Where the generators of this thread are: of functions, and of initial values; for JSON."""
    kind, keys, *rest = sys.modules[__name__].prng.get_state()
    functions = STREAMS.functions.data.data
    return {
        "functions": [int(n) for n in functions],
        "generator": [kind, [int(k) for k in keys], *rest],
    }


def set_state(state: Mapping[str, Any]) -> None:
    """Let the generators go on from what get_state gave; what is missing stays as it is.

    Raises:
        TypeError, ValueError, OverflowError, KeyError: It is something else.
    """
    if "functions" in state:
        STREAMS.functions.data.data[:] = np.array(state["functions"], np.uint64)
    if "generator" in state:
        kind, keys, *rest = state["generator"]
        sys.modules[__name__].prng.set_state((kind, np.array(keys, np.uint32), *rest))


def raw(rng: Array, n: int, xp: Any = np) -> Array:
    """n random uint64 words; advances the counter by the blocks of four that were used."""
    if xp is not np:
        from nnl.core.ops.philox import words_on_device

        words: Array = words_on_device(xp, rng, n)
        return words
    generator = np.random.Philox(key=int(rng[0]), counter=int(rng[1]))
    rng[1] += np.uint64((n + 3) // 4)
    drawn: Array = generator.random_raw(n)
    return drawn


def uniform(rng: Array, shape: tuple[int, ...], dtype: Any = np.float32, xp: Any = np) -> Array:
    """Uniform numbers in [0, 1): 24 bits of a 32-bit half word, or 53 bits for float64."""
    n = int(np.prod(shape, dtype=np.int64))
    if np.dtype(dtype) == np.float64:
        y: Array = (raw(rng, n, xp) >> np.uint64(11)) * 2.0**-53
        return y.reshape(shape)
    halves = raw(rng, (n + 1) // 2, xp).view(np.uint32)[:n]
    y32: Array = (halves >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
    return y32.astype(dtype, copy=False).reshape(shape)


def normal(rng: Array, shape: tuple[int, ...], dtype: Any = np.float32, xp: Any = np) -> Array:
    """Standard normal numbers by the Box-Muller transform of pairs of float64 uniforms.

    Source: Box and Muller, A Note on the Generation of Random Normal Deviates, 1958.
    """
    n = int(np.prod(shape, dtype=np.int64))
    half = (n + 1) // 2
    u = uniform(rng, (2, half), np.float64, xp)
    radius = xp.sqrt(-2.0 * xp.log1p(-u[0]))  # 1 - u is in (0, 1], so the logarithm is finite
    angle = 2.0 * np.pi * u[1]
    y: Array = xp.empty(2 * half, dtype)
    y[0::2] = radius * xp.cos(angle)
    y[1::2] = radius * xp.sin(angle)
    return y[:n].reshape(shape)
