# SPDX-License-Identifier: Apache-2.0
"""What gives the inputs of a loaded network their values: data sets, generators, the position."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from nnl.core.graph.variable import Variable
from nnl.data.iterator import DataIterator
from nnl.training.team import Team

Batch = Mapping[DataIterator, tuple[Any, ...]]


class Feed:
    """The inputs of one optimizer or monitor of a file.

    Args:
        part: As `load` gives it.
        iterators: Made already, by the function that makes them; new ones are added.
        stack: Closes the new ones.
        where: For messages.
        team: The processes that share every minibatch, if there are several.
    Raises:
        ValueError: A variable is to have a column that no data set has, or the part no data set.
    """

    def __init__(
        self,
        part: Any,
        iterators: dict[Any, DataIterator],
        stack: ExitStack,
        where: str,
        team: Team | None = None,
    ) -> None:
        self.where, self.team = where, team
        self.iterators: list[DataIterator] = []
        for name, make in part.data_iterators.items():
            if make is None:
                raise ValueError(f"{where}: the data set {name!r} has no uri")
            if make not in iterators:
                iterators[make] = stack.enter_context(make())
            self.iterators.append(iterators[make])
        columns = {n: (it, i) for it in self.iterators for i, n in enumerate(it.variables)}
        self.columns: list[tuple[str, Variable, DataIterator, int]] = []
        self.positions: list[tuple[str, Variable]] = []  # named %epoch and the like
        for v, name in part.dataset_assign.items():
            if name in columns:
                self.columns.append((name, v.variable_instance, *columns[name]))
            elif name.startswith("%"):
                self.positions.append((name, v.variable_instance))
            else:
                raise ValueError(
                    f"{where}: the variable {v.name!r} takes the column {name!r}, the data sets "
                    f"have {', '.join(columns) or 'none'}"
                )
        self.generated = [(v.variable_instance, g) for v, g in part.generator_assign.items()]

    def read(self, batch: dict[DataIterator, tuple[Any, ...]]) -> None:
        """Read the next minibatches of the data sets that have none in `batch` yet."""
        for it in self.iterators:
            if it not in batch:
                batch[it] = it.next()

    def fill(self, batch: Batch, position: Mapping[str, float]) -> None:
        """Set the inputs.

        Args:
            batch: What `read` has read.
            position: Values by name, of those that begin with %.
        Raises:
            ValueError: A minibatch has another shape than its variable, or a name is unknown.
        """
        for name, v, it, i in self.columns:
            array = batch[it][i]
            if self.team is not None:
                array = self.team.share(array)
            if array.shape != v.shape:
                array = self._shaped(name, array, v.shape)
            # minibatches are new arrays, which need not be copied: that would also let the thread
            # that reads the next one hold up the step
            if array.dtype != v.spec.dtype or not array.flags.carray:
                array = array.astype(v.spec.dtype)
            v.data.write("host", array)
        for name, v in self.positions:
            if name not in position:
                raise ValueError(
                    f"{self.where}: {name!r} is unknown, known are {', '.join(position)}"
                )
            v.d = position[name]
        for v, generate in self.generated:
            if self.team is None:
                v.d = generate(v.shape)
            else:  # as one process would, so that the shares differ
                v.d = self.team.share(generate((v.shape[0] * self.team.size, *v.shape[1:])))

    def _shaped(self, name: str, array: Any, shape: tuple[int, ...]) -> Any:
        try:
            return np.broadcast_to(array, shape)
        except ValueError:
            raise ValueError(
                f"{self.where}: the column {name!r} has minibatches of the shape {array.shape}, "
                f"its variable is {shape}"
            ) from None


def rows_of(feeds: Iterable[Feed]) -> int:
    """The number of rows of the largest data set."""
    return max((it.size for feed in feeds for it in feed.iterators), default=0)
