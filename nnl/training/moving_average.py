# SPDX-License-Identifier: Apache-2.0
"""Averages of parameters over the steps of a training run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from nnl.core.arrays.array import NdArray
from nnl.core.graph.variable import Variable

__all__ = ["MovingAverage"]


class MovingAverage:
    r"""Exponential moving averages of parameters: $a \leftarrow \beta a + (1 - \beta) w$.

    Args:
        parameters: Variables by name, as of nnl.get_parameters(grad_only=False): running statistics
            are averaged, too.
        decay: $\beta$ in [0, 1); 0.9999 averages over about 10,000 updates.

    Attributes:
        values: The averages by name, NdArrays. They begin as the parameters are.
        updates: How many there were. The first ones take a smaller $\beta$, (1 + n) / (10 + n), so
            that initial values do not stay.
    Raises:
        ValueError: decay is out of its range.
    Source: Polyak and Juditsky, Acceleration of Stochastic Approximation by Averaging, 1992.

    Example:
        >>> w = nn.Variable.from_numpy_array(np.zeros(1, np.float32))
        >>> average = MovingAverage({"w": w}, 0.9)
        >>> w.d = 1
        >>> average.update()                # after every step, or every few
        >>> with average.instead():         # a network computes with the averages
        ...     w.d.round(3)
        array([0.9], dtype=float32)
    """

    def __init__(self, parameters: Mapping[str, Variable], decay: float) -> None:
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"MovingAverage: decay is {decay!r}, wanted a number in [0, 1)")
        self.parameters, self.decay, self.updates = dict(parameters), float(decay), 0
        self.values = {key: NdArray(v.shape) for key, v in self.parameters.items()}
        for key, v in self.parameters.items():
            self.values[key].copy_from(v.data)

    def update(self) -> None:
        """Move the averages towards the parameters as they are now."""
        self.updates += 1
        keep = min(self.decay, self.updates / (9 + self.updates))
        for key, v in self.parameters.items():
            average = self.values[key]
            average *= keep
            average += v.data * (1 - keep)

    @contextmanager
    def instead(self) -> Iterator[None]:
        """The averages are the values of the parameters inside the with block."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for key, v in self.parameters.items():
            trained = NdArray(v.shape)
            trained.copy_from(v.data)
            v.data.copy_from(self.values[key])
            self.values[key].copy_from(trained)
