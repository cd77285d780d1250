# SPDX-License-Identifier: Apache-2.0
"""What plugins that explain a network have in common: the network, samples, gradients, pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import nnl as nn
from nnl.console.data.pictures import png, shown, thumbnail
from nnl.console.data.tables import read_cells, read_table, variables
from nnl.converters.nnp.graph import NnpLoader
from nnl.converters.nnp.network_pass import NnpNetworkPass
from nnl.core.graph.node import capture
from nnl.core.graph.variable import Variable

Array = np.ndarray[Any, Any]


class Explained:
    """A network of a .nnp file, for a number of samples at once.

    Args:
        exactly: Whether another batch size, which the file fixes, will not do.
    Attributes:
        x, y: Its input and its output.
        score: What the output is computed from where that is a softmax or a sigmoid: likelihoods
            near 0 and 1 have no gradient to speak of.
    """

    def __init__(
        self,
        path: str | Path,
        batch_size: int = 1,
        network: str | None = None,
        exactly: bool = False,
    ) -> None:
        loader = NnpLoader(str(path))
        names = loader.get_network_names()
        name = network or ("MainRuntime" if "MainRuntime" in names else names[-1])
        with nn.parameter_scope("explained"):
            nn.clear_parameters()
            first, x = next(iter(loader.get_network(name, batch_size).inputs.items()))
            # functions before the first parameter have a gradient only if the input wants one
            self.x, change = Variable(x.shape, need_grad=True), NnpNetworkPass()
            change.set_variable(first, self.x)
            self.network = loader.get_network(name, batch_size, change)
            self.parameters = nn.get_parameters()
        self.inputs = self.network.inputs
        self.batch_size = self.x.shape[0]  # which some files fix
        if exactly and self.batch_size != batch_size:
            raise ValueError(
                f"the batch size of this network is fixed at {self.batch_size}, wanted {batch_size}"
            )
        self.y = next(iter(self.network.outputs.values()))
        above = self.y.parent
        ends = above is not None and above.name in ("Softmax", "Sigmoid")
        self.score = above.inputs[0] if ends else self.y

    def scores(self, samples: Array) -> Array:
        """The scores of any number of samples."""
        return self._each(samples, self.score)

    def likelihoods(self, samples: Array) -> Array:
        """The outputs of any number of samples."""
        return self._each(samples, self.y)

    def _each(self, samples: Array, y: Variable) -> Array:
        found = []
        for begin in range(0, len(samples), self.batch_size):
            part = samples[begin : begin + self.batch_size]
            self.x.d = np.concatenate([part, *[part[:1]] * (self.batch_size - len(part))])
            y.forward()
            found.append(y.d[: len(part)].copy())
        return np.concatenate(found)

    def gradient(self, of: Variable, to: Variable, start: Array) -> Callable[[Array], Array]:
        """A function of samples: the gradient of `of`, weighted with `start`, with respect to
        `to`."""
        (g,) = nn.grad([of], [to], [nn.NdArray.from_numpy_array(start)])

        def computed(samples: Array) -> Array:
            self.x.d = samples
            g.forward()
            value: Array = g.d[: len(samples)].copy()
            return value

        return computed

    def one_class(self, number: int) -> Array:
        """Weights that choose the score of one class."""
        start = np.zeros(self.score.shape, np.float32)
        start.reshape(len(start), -1)[:, number] = 1
        return start

    def last_maps(self, name: str | None = None) -> Variable:
        """The variable of this name; else the last one with maps of features: of the last
        convolution, or of what follows it without a change of shape, as its activation. Maps before
        an activation are mostly negative where nothing is found, and weigh the wrong way then."""
        if name:
            found = self.network.variables.get(name)
            if found is None:
                raise ValueError(f"the network has no variable {name!r}")
            return found
        nodes = capture([self.score.edge])
        last = [i for i, n in enumerate(nodes) if n.op.name.endswith("convolution")]
        if not last:
            raise ValueError("the network has no convolution, so there are no maps to weigh")
        named = {v.edge.node: v for v in self.network.variables.values() if v.edge.node}
        maps = [named[n] for n in nodes[last[-1] :] if n in named]
        if not maps or maps[0].edge.node is not nodes[last[-1]]:
            raise ValueError("the last convolution has no name in the file")
        return [v for v in maps if v.shape == maps[0].shape][-1]


def sample(csv: str | Path, row: int, column: str | None = None) -> Array:
    """One sample of a data set, with the batch axis."""
    header, rows = read_table(Path(csv))
    places = variables(header)
    name = column or next(iter(places))
    if name not in places:
        raise ValueError(f"the data set has no column {name!r}, only {', '.join(places)}")
    if not 0 <= row < len(rows):
        raise ValueError(f"the data set has {len(rows)} rows, not one of number {row}")
    return read_cells([rows[row][i] for i in places[name][0]], Path(csv).parent)[None]


def samples(csv: str | Path, column: str) -> Array:
    """A whole column of a data set."""
    header, rows = read_table(Path(csv))
    places = variables(header)
    if column not in places:
        raise ValueError(f"the data set has no column {column!r}, only {', '.join(places)}")
    root = Path(csv).parent
    return np.stack([read_cells([row[i] for i in places[column][0]], root) for row in rows])


def heat(values: Array) -> Array:
    """A map of numbers as colours: blue below 0, red above, white at 0."""
    most = float(np.abs(values).max()) or 1.0
    x = np.clip(values / most, -1, 1)[..., None]
    red, blue = np.array([214, 39, 40.0]), np.array([31, 119, 180.0])
    colours: Array = np.where(x > 0, 255 + (red - 255) * x, 255 + (blue - 255) * -x)
    return colours.astype(np.uint8)


def write_map(path: str | Path, values: Array, image: Array | None = None, size: int = 256) -> None:
    """Write a map of numbers as a picture, over the image that it is about."""
    colours = thumbnail(heat(values), size).astype(np.float32)
    if image is not None:
        below = thumbnail(shown(image), size).astype(np.float32)
        below = below if below.ndim == 3 else below[..., None]
        rows, columns = min(len(below), len(colours)), min(below.shape[1], colours.shape[1])
        colours = 0.6 * colours[:rows, :columns] + 0.4 * below[:rows, :columns, :3]
    Path(path).write_bytes(png(np.ascontiguousarray(colours.astype(np.uint8))))


def segments(shape: tuple[int, ...], grid: int) -> Array:
    """Which of grid x grid squares each pixel is in; without pixels, each number is its own."""
    if len(shape) < 2:
        return np.arange(shape[0] if shape else 1)
    height, width = shape[-2:]
    rows = np.arange(height) * min(grid, height) // height
    columns = np.arange(width) * min(grid, width) // width
    found: Array = rows[:, None] * min(grid, width) + columns
    return found


def masked(x: Array, masks: Array, parts: Array, baseline: float) -> Array:
    """The sample with those parts replaced by the baseline that a mask leaves out."""
    kept = masks[:, parts.reshape(-1)].reshape(len(masks), *parts.shape).astype(bool)
    while kept.ndim < x.ndim:
        kept = kept[:, None]
    return np.where(kept, x, np.float32(baseline)).astype(np.float32)
