# SPDX-License-Identifier: Apache-2.0
"""Strings at the boundary of a program, which itself computes with their numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Words:
    """The strings that a program knows, in order of their numbers; any other one is -1.

    Attributes:
        strings: The strings.
        names: Inputs and outputs of the program that are strings.
    """

    def __init__(self, strings: Iterable[str] = (), names: Collection[str] = ()) -> None:
        self.strings, self.names = tuple(strings), frozenset(names)
        self._numbers = {s: i for i, s in enumerate(self.strings)}

    def numbers(self, strings: Any) -> Array:
        """The numbers of strings, as int64."""
        a = np.asarray(strings)
        found = [self._numbers.get(s, -1) for s in a.reshape(-1).tolist()]
        return np.array(found, np.int64).reshape(a.shape)

    def words(self, numbers: Any) -> Array:
        """The strings of numbers.

        Raises:
            ValueError: There is none of a number: it was not known where it came in.
        """
        a = np.asarray(numbers).astype(np.int64)
        if a.size and not 0 <= a.min() <= a.max() < len(self.strings):
            raise ValueError("gives a string back that it does not know")
        return np.array([*self.strings, ""], object)[a]

    def begin(self, where: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values of inputs, with numbers for strings.

        Raises:
            TypeError: There is something else in the place of strings.
        """
        found = dict(values)
        for name in self.names & found.keys():
            a = np.asarray(found[name])
            if a.dtype.kind not in "UO" or not all(type(s) is str for s in a.reshape(-1).tolist()):
                raise TypeError(f"{where}: {name} is {a.dtype} {a.shape}, wanted strings")
            found[name] = self.numbers(a)
        return found

    def end(self, where: str, values: Mapping[str, Array]) -> dict[str, Array]:
        """Values of outputs, with strings for their numbers."""
        try:
            return {k: self.words(v) if k in self.names else v for k, v in values.items()}
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
