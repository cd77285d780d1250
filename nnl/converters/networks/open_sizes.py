# SPDX-License-Identifier: Apache-2.0
"""Which sizes of a file's inputs are open, and closing them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nnl.graph.program.sizes import Dim

Axes = dict[str, tuple[str | int, ...]]
# A size that nobody gives an example of is tried near this one; batches near 1.
EXAMPLE = 64


@dataclass
class OpenSizes:
    """The shapes of inputs, with names in the place of open sizes.

    Attributes:
        axes: {input: sizes and names}; all axes with one name are of one size. Empty where a file
            has no open ones.
        ranges: {name: (least, greatest or None, multiple)}, of those that somebody has said.
    """

    axes: Axes = field(default_factory=dict)
    ranges: dict[str, tuple[int, int | None, int]] = field(default_factory=dict)

    @property
    def open(self) -> bool:
        """Whether any size is."""
        return any(isinstance(n, str) for sizes in self.axes.values() for n in sizes)

    @property
    def dims(self) -> dict[str, Dim]:
        """The open sizes, by name."""
        found: dict[str, Dim] = {}
        for sizes in self.axes.values():
            for axis, n in enumerate(sizes):
                if isinstance(n, str) and n not in found:
                    least, greatest, multiple = self.ranges.get(n, (1, None, 1))
                    example = 1 if axis == 0 or "batch" in n.lower() else EXAMPLE
                    example = max(least, min(example, greatest or example))
                    example += -example % multiple
                    found[n] = Dim(example, least, greatest, multiple)
        return found

    def shapes(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs for sizes of all dims."""
        return {
            name: tuple([sizes[n] if isinstance(n, str) else n for n in axes])
            for name, axes in self.axes.items()
        }

    def sizes(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """Sizes of all dims, from the shapes of the inputs."""
        return {
            n: shapes[name][axis]
            for name, axes in self.axes.items()
            for axis, n in enumerate(axes)
            if isinstance(n, str)
        }

    def closed(self, given: Mapping[str, Sequence[str]], where: str) -> OpenSizes:
        """The same with what somebody says of inputs, such as ["1", "3", "height:32..512:32"].

        A name leaves a size open, also one that the file has closed; a number closes it.

        Raises:
            ValueError: It does not fit the file; the text names the input.
        """
        axes, ranges = dict(self.axes), dict(self.ranges)
        names = {}  # of the file -> what is said of it
        for key, words in given.items():
            if key not in axes:
                raise ValueError(f"{where}: there is no input {key!r} among {', '.join(axes)}")
            if len(words) != len(axes[key]):
                raise ValueError(
                    f"{where}: {key} has {len(axes[key])} axes, got {len(words)}: {','.join(words)}"
                )
            for n, word in zip(axes[key], words, strict=True):
                size, found = _word(word)
                if found is not None:
                    ranges[str(size)] = found
                if isinstance(n, str):
                    if names.setdefault(n, size) != size:
                        raise ValueError(
                            f"{where}: {n} is one size in the file, got {names[n]} and {size}"
                        )
                elif isinstance(size, int) and size != n:
                    raise ValueError(f"{where}: {key} has the size {n} in the file, got {size}")
        for key, sizes in axes.items():
            own = [_word(w)[0] for w in given[key]] if key in given else sizes
            axes[key] = tuple([names.get(n, n) if isinstance(n, str) else n for n in own])
        used = {n for sizes in axes.values() for n in sizes}
        return OpenSizes(axes, {n: r for n, r in ranges.items() if n in used})


def _word(word: str) -> tuple[str | int, tuple[int, int | None, int] | None]:
    """The size or name, and the range, of "640", "height" or "height:32..4096:32"."""
    found = re.fullmatch(r"(?:(\d+)|([^\W\d]\w*)(?::(\d*)\.\.(\d*)(?::(\d+))?)?)", word.strip())
    if found is None:
        raise ValueError(
            f"{word!r} is no size, wanted a number, or a name as in height or height:32..4096:32"
        )
    number, name, least, greatest, multiple = found.groups()
    if number is not None:
        return int(number), None
    if least is None:
        return name, None
    bounds = int(least or 1), int(greatest) if greatest else None, int(multiple or 1)
    if not 0 < bounds[0] <= (bounds[1] or bounds[0]) or not bounds[2]:
        raise ValueError(f"{word!r} is no range, wanted least..greatest:multiple")
    return name, bounds


def words(text: str) -> tuple[str, list[str]]:
    """Input and sizes of "x=1,3,640,640".

    Raises:
        ValueError: It is something else.
    """
    name, equals, sizes = text.rpartition("=")
    if not equals or not name:
        raise ValueError(f"{text!r} is no shape, wanted one such as x=1,3,640,640")
    return name, [w for w in sizes.split(",") if w.strip()]


def named(name: str, axis: int, size: Any) -> str:
    """What an open size of a file is called: as there, where that is a name."""
    word = re.sub(r"\W+", "_", size).strip("_") if isinstance(size, str) else ""
    if word:  # "?" names nothing
        return word if word.isidentifier() else f"size_{word}"
    own = re.sub(r"\W+", "_", name).strip("_")
    return "batch" if axis == 0 else f"{own}_{axis}" if own.isidentifier() else f"x_{own}_{axis}"
