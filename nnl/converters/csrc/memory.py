# SPDX-License-Identifier: Apache-2.0
"""From a lowered network to steps in C, and where their arrays lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nnl.converters.csrc.calls import steps_of
from nnl.converters.csrc.int8 import quantized
from nnl.converters.csrc.loops import COPY, Call, Key, Loop, Read, Work, dense, read, written
from nnl.converters.networks.lowering import Lowered
from nnl.converters.networks.scale import Scale
from nnl.core.graph.node import Value
from nnl.graph.plan.memory import plan_memory

MOST_READS = 16  # of a loop that was joined from several; C99 promises 127 parameters
_FLOAT = 4  # bytes
MOST = 2**31 - 1  # bytes of the arena, and elements of an array: int counts them
_LARGEST_WHOLE = 2**24  # up to here every whole number is a float32

Array = np.ndarray[Any, Any]


@dataclass
class Plan:
    """What runs.

    Attributes:
        steps: In order.
        places: Where arrays lie in the arena, in floats.
        used: The first and the last step that has each of them, and its size in floats.
        arena: Its size in floats.
        outputs: Which output each array is that is one.
        constants: What no step makes, in the order in which it is read.
        scales: Of arrays of 8 bits; the others are floats.
    """

    steps: list[Loop | Call]
    places: dict[Key, int] = field(default_factory=dict)
    used: dict[Key, tuple[int, int, int]] = field(default_factory=dict)
    arena: int = 0
    outputs: dict[Key, int] = field(default_factory=dict)
    constants: dict[Key, Array] = field(default_factory=dict)
    scales: dict[Key, Scale] = field(default_factory=dict)


def plan(
    lowered: Lowered,
    ranges: Mapping[Key, tuple[float, float]] | None = None,
    any_size: bool = False,
) -> Plan:
    """Steps, each array in the arena for as long as somebody reads it.

    Args:
        ranges: The smallest and largest numbers of all arrays that are computed, for one with
            numbers of 8 bits.
        any_size: Whether steps take all the memory that they may need at other sizes.
    Raises:
        ValueError: A constant is not a float32, or too much memory is needed.
    """
    same: dict[Key, Key] = {}  # reshaped arrays -> what they are in memory
    constants: dict[Key, Array] = {}
    inputs = {v.key for v in lowered.inputs.values()}
    sizes: dict[Key, int] = {v.key: v.current_spec.size for v in lowered.inputs.values()}
    steps: list[Loop | Call] = []
    for node in lowered.nodes:
        for v in node.inputs:
            if v is not None and v.node is None and v.key not in inputs and v.key not in constants:
                constants[v.key] = _data(v)
        for i, spec in enumerate(node.out_specs):
            sizes[id(node), i] = spec.size
        if node.op.name in ("reshape", "identity"):
            x = node.inputs[0].key  # type: ignore[union-attr]
            same[id(node), 0] = same.get(x, x)
        else:
            steps += [_renamed(s, same, any_size) for s in steps_of(node)]
    made = {key for s in steps for key in written(s)}
    outputs: dict[Key, int] = {}
    for i, v in enumerate(lowered.outputs.values()):
        key = same.get(v.key, v.key)
        if key in made and key not in outputs:
            outputs[key] = i
        else:
            space = (v.current_spec.size,)
            copied = ("output", i)
            steps.append(Loop(space, ((key, dense(space)),), COPY, (copied, dense(space))))
            outputs[copied] = i
    found = Plan(steps, outputs=outputs)
    if ranges is not None:
        eight = quantized(steps, {*inputs, *outputs}, constants, sizes, ranges)
        found.steps, found.scales = eight.steps, eight.scales
        sizes.update(eight.sizes)
        constants.update(eight.constants)
    found.steps = _joined(found.steps, outputs)
    given = {*outputs, *inputs}
    used: dict[Key, tuple[int, int]] = {}
    for t, step in enumerate(found.steps):
        for key in (*written(step), *read(step)):
            if key in constants:
                found.constants.setdefault(key, constants[key])
            elif key not in given:
                used[key] = used.get(key, (t, t))[0], t

    def size(key: Key) -> int:
        count = key.size if isinstance(key, Work) else sizes[key]
        return count if key in found.scales else _FLOAT * count

    found.used = {k: (*life, -(-size(k) // _FLOAT)) for k, life in used.items()}
    places, arena = plan_memory({k: (first, last, size(k)) for k, (first, last) in used.items()})
    if arena > MOST:
        raise ValueError(f"CSRC: the network needs {arena} bytes of memory, wanted at most {MOST}")
    found.places = {key: at // _FLOAT for key, at in places.items()}
    found.arena = arena // _FLOAT
    return found


def _data(v: Value) -> Array:
    array = v.array.read("host")
    if array.dtype.kind in "iu" and array.size and np.abs(array).max() > _LARGEST_WHOLE:
        raise ValueError(
            f"CSRC: a constant holds {np.abs(array).max()}, and whole numbers up to "
            f"{_LARGEST_WHOLE}, which a float can be, were wanted"
        )
    return np.ascontiguousarray(array, "<f4").reshape(-1)


def _renamed(step: Loop | Call, same: dict[Key, Key], any_size: bool) -> Loop | Call:
    """Reading what arrays are in memory, and with the memory that it needs."""
    if isinstance(step, Loop):
        return replace(step, reads=tuple((same.get(k, k), p) for k, p in step.reads))

    def argument(a: Any) -> Any:
        if isinstance(a, Work) and any_size:
            return Work(a.size if a.most is None else a.most)
        if isinstance(a, Work) and a.spare:
            return None
        return Read(same.get(a.key, a.key)) if isinstance(a, Read) else a

    return replace(step, arguments=tuple(map(argument, step.arguments)))


def _joined(steps: list[Loop | Call], outputs: dict[Key, int]) -> list[Loop | Call]:
    """Loops whose result one other loop reads, element by element, become part of it."""
    readers = Counter(key for s in steps for key in read(s))
    writers = Counter(key for s in steps for key in written(s))

    def alone(key: Key) -> bool:
        return key not in outputs and readers[key] == 1 and writers[key] == 1

    waiting: dict[Key, Loop] = {}
    done: list[Loop | Call] = []
    for step in steps:
        if isinstance(step, Loop):
            for key, pattern in step.reads:
                before = waiting.get(key)
                if (
                    before is not None
                    and pattern == dense(step.space)
                    and before.space == step.space
                    and len(before.reads) + len(step.reads) <= MOST_READS
                ):
                    step = step.joined(waiting.pop(key))
        for key in read(step):
            if key in waiting:
                done.append(waiting.pop(key))
        if isinstance(step, Loop) and step.is_dense and alone(step.write[0]):
            waiting[step.write[0]] = step
        else:
            done.append(step)
    return done + list(waiting.values())
