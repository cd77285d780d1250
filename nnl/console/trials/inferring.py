# SPDX-License-Identifier: Apache-2.0
"""A trained network on one sample: what it says, and what it was given."""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nnl.console.data.pictures import png, shown
from nnl.console.data.tables import ARRAYS, IMAGES, Array, read_cells, read_table, sized, variables
from nnl.console.errors import Refused
from nnl.converters.formats import read_model
from nnl.data.loader import get_file_extension, load

MAX_SHOWN = 10_000  # numbers of an array


def infer(
    path: str,
    values: Mapping[str, Any] | None = None,
    csv: str | None = None,
    row: int = 0,
    sample: str | None = None,
) -> dict[str, Any]:
    """Run the network of a .nnp file on one sample; on copies of it where the file fixes the batch.

    Args:
        values: Of inputs, by name; the others come from a row of `csv`.
        sample: A file, a picture or an array, that is the value of the only input.
    """
    network = read_model([path])[0].network(1, inference=True)
    inputs = {name: v.shape for name, v in network.inputs.items()}
    given: dict[str, Array] = {}
    if csv is not None:
        given |= _of_row(Path(csv), row, inputs)
    if sample is not None:
        if len(inputs) != 1:
            what = f"the network has the inputs {', '.join(inputs)}, one file is no sample for it"
            raise Refused("invalid", what, "choose a row of a data set", "name")
        given |= {name: _of_file(Path(sample), shape[1:]) for name, shape in inputs.items()}
    for name, value in (values or {}).items():
        if name not in inputs:
            what = f"the network has no input {name[:60]!r}, only {', '.join(inputs)}"
            raise Refused("invalid", what, None, name)
        given[name] = _numbers(name, value)
    for name, shape in inputs.items():
        if name not in given:
            raise Refused("invalid", f"the input {name!r} has no value", None, name)
        if given[name].size != math.prod(shape[1:]):
            what = f"{name} is {list(given[name].shape)}, the network takes {list(shape[1:])}"
            raise Refused("invalid", what, "choose data of this shape", name)
        given[name] = np.broadcast_to(given[name].reshape(shape[1:]), shape)
    begin = time.perf_counter()
    found = network.run(given)
    seconds = time.perf_counter() - begin
    return {
        "inputs": [_shown(name, given[name]) for name in inputs],
        "outputs": [_shown(name, y) for name, y in found.items()],
        "seconds": seconds,
    }


def _of_row(csv: Path, row: int, inputs: Mapping[str, Any]) -> dict[str, Array]:
    header, rows = read_table(csv)
    if not 0 <= row < len(rows):
        raise Refused("not_found", f"the data set has {len(rows)} rows, not number {row}")
    places = {name: p for name, (p, _) in variables(header).items() if name in inputs}
    return {n: read_cells([rows[row][i] for i in p], csv.parent) for n, p in places.items()}


def _of_file(path: Path, shape: tuple[int, ...]) -> Array:
    """A picture, in the size and with the colours that the network takes; or an array."""
    kind = get_file_extension(path.name)
    if kind in ARRAYS:
        return np.asarray(load(kind)(str(path)), np.float32)
    if kind not in IMAGES:
        wanted = ", ".join((*IMAGES, *ARRAYS))
        raise Refused("unreadable", f"its extension is {kind!r}, wanted {wanted}", None, path.name)
    from nnl.data.image import imread

    sized(path)
    channels = {(3, 3): 3, (3, 4): 4}.get((len(shape), shape[0] if shape else 0), 0)
    size = (shape[-1], shape[-2]) if len(shape) in (2, 3) else None
    x = imread(path, not channels, size, channel_first=True, num_channels=channels)
    return np.asarray(x, np.float32) / 255


def _numbers(name: str, value: Any) -> Array:
    try:
        found = np.asarray(value, np.float32)
    except (ValueError, TypeError, OverflowError):
        raise Refused("invalid", f"{name} has values that are no numbers", None, name) from None
    return found


def _shown(name: str, value: Array) -> dict[str, Any]:
    """An array of one sample for the page: numbers, and a picture where it has two axes or more."""
    x = value[0] if value.ndim else value
    entry: dict[str, Any] = {"name": name, "shape": list(x.shape), "values": None, "picture": None}
    if x.size <= MAX_SHOWN:
        numbers = x.astype(np.float64).reshape(-1).tolist()
        entry["values"] = [v if math.isfinite(v) else None for v in numbers]
    if x.ndim >= 2 and x.size:
        content = base64.b64encode(png(shown(x))).decode()
        entry["picture"] = f"data:image/png;base64,{content}"
    return entry
