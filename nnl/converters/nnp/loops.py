# SPDX-License-Identifier: Apache-2.0
"""Repeated and recurrent parts of a Network message, unrolled.

A function or variable with `repeat_id`s stands for one copy per iteration of these loops, the first
id being the outermost. The ends of loops are functions of their own:

    RepeatStart(x, y)     x in the first iteration, then the y of the iteration before
    RepeatEnd(y)          the y of the last iteration
    RecurrentInput(x)     the i-th slice of x along an axis
    RecurrentOutput(y)    all y stacked along an axis
    Delay(y, x)           x in the first iteration, then the y of the iteration before

A copy is called name_R[2] for the third iteration of the loop R, or takes [2] in the place of {R}
in its name, as parameters do.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

CONTROLS = ("RepeatStart", "RepeatEnd", "RecurrentInput", "RecurrentOutput", "Delay")
MAX_COPIES = 2**17  # of functions and variables; nested loops multiply
MAX_HOPS = 2**22  # through the ends of loops, in all
_SLICES = ("RecurrentInput", "RecurrentOutput")
_INPUTS = {"RepeatStart": 2, "RepeatEnd": 1, "RecurrentInput": 1, "RecurrentOutput": 1, "Delay": 2}

Step = dict[str, int]  # iteration by loop


def has_loops(message: Any) -> bool:
    """Whether a Network message has parts to unroll."""
    parts = (*message.function, *message.variable)
    controls = any(f.type in CONTROLS for f in message.function)
    return bool(message.repeat_info) or controls or any(p.repeat_id for p in parts)


def expand_loops(message: Any, where: str) -> Any:
    """A Network message that says the same without loops; the given one if it has none.

    Args:
        where: The file and network, for messages.
    Raises:
        ValueError: A loop has no number of iterations, is left without RepeatEnd or
            RecurrentOutput, or would give too many functions.
    """
    return _Expansion(message, where).result if has_loops(message) else message


class _Expansion:
    def __init__(self, message: Any, where: str) -> None:
        self.message, self.where, self.hops = message, where, 0
        self.times = self._times()
        self.loops = {v.name: tuple(v.repeat_id) for v in message.variable}
        self.source = {name: f for f in message.function for name in f.output}
        self.renamed: set[str] = set()  # variables that the controls stand for
        for f in message.function:
            if f.type in CONTROLS:
                self._check_control(f)
                if f.type not in _SLICES:
                    self.renamed.add(f.output[0])
        self._check_size()
        self.result = type(message)()
        self.result.name, self.result.batch_size = message.name, message.batch_size
        for v in message.variable:
            if v.name not in self.renamed:
                self._add_variable(v)
        for f in message.function:
            self._add_function(f)

    def _times(self) -> dict[str, int]:
        times = {r.id: r.times for r in self.message.repeat_info}
        for f in self.message.function:  # files without repeat_info say it at the ends of a loop
            if f.HasField("repeat_param") and f.repeat_param.times:
                times.setdefault(f.repeat_param.repeat_id, f.repeat_param.times)
            if f.HasField("recurrent_param") and f.recurrent_param.length:
                times.setdefault(f.recurrent_param.repeat_id, f.recurrent_param.length)
        used = {
            i
            for part in (self.message.function, self.message.variable)
            for entry in part
            for i in entry.repeat_id
        }
        used |= {self._loop(f) for f in self.message.function if f.type in CONTROLS}
        for name in sorted(used):
            if times.get(name, 0) < 1:
                raise ValueError(
                    f"{self.where}: the loop {name!r} has {times.get(name, 'no number of')} "
                    "iterations"
                )
        return times

    def _loop(self, f: Any) -> str:
        part = f.repeat_param if f.type.startswith("Repeat") else f.recurrent_param
        return str(part.repeat_id)

    def _check_control(self, f: Any) -> None:
        at = f"{self.where}: function {f.name!r} ({f.type})"
        if len(f.input) != _INPUTS[f.type] or len(f.output) != 1:
            raise ValueError(
                f"{at}: it has {len(f.input)} inputs and {len(f.output)} outputs, wanted "
                f"{_INPUTS[f.type]} and 1"
            )
        for name in (*f.input, *f.output):
            if name not in self.loops:
                raise ValueError(f"{at}: there is no variable {name!r}")

    def _check_size(self) -> None:
        loops = [list(v.repeat_id) for v in self.message.variable]
        for f in self.message.function:
            own = list(f.repeat_id)
            if f.type in _SLICES:  # each slice has a name
                own = [self._loop(f), *(name for name in own if name != self._loop(f))]
            loops.append(own)
        copies = sum(math.prod(self.times[name] for name in own) for own in loops)
        if copies > MAX_COPIES:
            raise ValueError(
                f"{self.where}: its loops unroll to {copies} functions and variables, more than "
                f"{MAX_COPIES}"
            )

    def _steps(self, loops: Any) -> list[Step]:
        names = list(loops)
        return [
            dict(zip(names, numbers, strict=True))
            for numbers in product(*(range(self.times[n]) for n in names))
        ]

    def _named(self, name: str, loops: Any, step: Step) -> str:
        suffix = ""
        for loop in loops:
            if loop not in step:
                raise ValueError(
                    f"{self.where}: the variable {name!r} of the loop {loop!r} is read outside it"
                )
            number = f"[{step[loop]}]"
            if f"{{{loop}}}" in name:
                name = name.replace(f"{{{loop}}}", number)
            else:
                suffix += f"_{loop}{number}"
        return name + suffix

    def _resolve(self, name: str, step: Step) -> str:
        """Name of the variable that `name` stands for in an iteration: controls are looked
        through, in a loop rather than by recursion, as files may nest them deeply."""
        here = dict(step)
        while name in self.renamed:
            f = self.source[name]
            loop = self._loop(f)
            if f.type == "RepeatEnd":
                name, here[loop] = f.input[0], self.times[loop] - 1
            elif loop not in here:
                raise ValueError(
                    f"{self.where}: the variable {name!r} of the loop {loop!r} is read outside it"
                )
            else:
                first, other = f.input if f.type == "RepeatStart" else reversed(f.input)
                name = first if here[loop] == 0 else other
                here[loop] = max(here[loop] - 1, 0)
            self.hops += 1
            if self.hops > MAX_HOPS:
                raise ValueError(f"{self.where}: function {f.name!r}: it leads back to itself")
        if name not in self.loops:
            raise ValueError(f"{self.where}: there is no variable {name!r}")
        return self._named(name, self.loops[name], here)

    def _add_variable(self, v: Any) -> None:
        for step in self._steps(v.repeat_id):
            copy = self.result.variable.add()
            copy.CopyFrom(v)
            del copy.repeat_id[:]
            copy.name = self._named(v.name, v.repeat_id, step)

    def _add_function(self, f: Any) -> None:
        if f.type in _SLICES:
            self._add_slices(f)
        elif f.type not in CONTROLS:
            for step in self._steps(f.repeat_id):
                copy = self.result.function.add()
                copy.CopyFrom(f)
                for names in (copy.repeat_id, copy.input, copy.output):
                    del names[:]
                copy.name = self._named(f.name, f.repeat_id, step)
                copy.input.extend(self._input(n, step, f) for n in f.input)
                copy.output.extend(self._input(n, step, f) for n in f.output)

    def _input(self, name: str, step: Step, f: Any) -> str:
        if name not in self.loops:
            raise ValueError(f"{self.where}: function {f.name!r}: there is no variable {name!r}")
        return self._resolve(name, step)

    def _add_slices(self, f: Any) -> None:
        """A Split before a loop, or a Stack after it, once per iteration of the loops around."""
        loop, inward = self._loop(f), f.type == "RecurrentInput"
        for step in self._steps(n for n in f.repeat_id if n != loop):
            copy = self.result.function.add()
            copy.name = self._named(f.name, step, step)
            copy.type = "Split" if inward else "Stack"
            arguments = copy.split_param if inward else copy.stack_param
            arguments.axis = f.recurrent_param.axis
            arguments.SetInParent()
            inside = [{**step, loop: i} for i in range(self.times[loop])]
            copy.input.extend(self._resolve(f.input[0], s) for s in ([step] if inward else inside))
            copy.output.extend(
                self._resolve(f.output[0], s) for s in (inside if inward else [step])
            )
