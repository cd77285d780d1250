# SPDX-License-Identifier: Apache-2.0
"""The weights of a network: taken from files, written to them, shared with another network."""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Any

import numpy as np

from nnl.converters.caffe.weights import (
    Shapes,
    fits,
    is_hdf5,
    read_weights,
    write_hdf5,
    write_weights,
)
from nnl.dialects.caffe.layer import Layer, Parameter

Array = np.ndarray[Any, Any]


class Weighted:
    """The weights of a Net."""

    message: Any
    layers: list[Layer]
    params: OrderedDict[str, list[Parameter]]

    def copy_from(self, path: str) -> None:
        """Take the weights of layers that have a name of this network from a .caffemodel.

        Raises:
            ValueError: The file is damaged, or a shape differs; nothing is changed then.
        """
        direct: dict[tuple[str, int], Array] = {}

        def into(shapes: Shapes) -> dict[tuple[str, int], Array]:
            direct.update(self._places(path, shapes))
            return {} if is_hdf5(path) else direct

        for name, arrays in read_weights(path, into).items():
            for i, (p, a) in enumerate(zip(self.params.get(name, ()), arrays, strict=False)):
                if a is not direct.get((name, i)):
                    p.write(a.reshape(p.shape))

    def _places(self, path: str, shapes: Shapes) -> dict[tuple[str, int], Array]:
        """Parameters that a file can be read into as they are; its shapes are those of layers."""
        problems, places = [], {}
        for name in [n for n in self.params if n in shapes]:
            mine, theirs = self.params[name], shapes[name]
            if len(theirs) != len(mine):
                problems.append(f"layer {name!r} has {len(theirs)} parameters, wanted {len(mine)}")
                continue
            for i, (p, shape) in enumerate(zip(mine, theirs, strict=True)):
                if not fits(tuple(shape), p.shape):
                    problems.append(f"layer {name!r}: parameter {i} is {shape}, wanted {p.shape}")
                elif (now := p.data).dtype == np.float32 and now.flags.c_contiguous:
                    places[name, i] = now
        if problems:
            raise ValueError(f"{path}: shapes of weights:\n  " + "\n  ".join(problems))
        return places

    def share_with(self, other: Weighted) -> None:
        """Use the memory of another network's parameters, of layers of one name.

        Raises:
            ValueError: A shape differs; nothing is changed then.
        """
        pairs = []
        for name in [n for n in self.params if n in other.params]:
            for i, (p, q) in enumerate(zip(self.params[name], other.params[name], strict=False)):
                if p.shape != q.shape or p.turned != q.turned:
                    raise ValueError(
                        f"Net.share_with: layer {name!r}: parameter {i} has the shape {p.shape}, "
                        f"in the other network {q.shape}"
                    )
                pairs.append((p, q))
        for p, q in pairs:
            p.variable.data = q.variable.data

    def _arrays(self) -> dict[str, list[Array]]:
        return {layer.name: [p.data for p in layer.blobs] for layer in self.layers if layer.blobs}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the network with its weights: .caffemodel, or .caffemodel.h5."""
        write_weights(os.fspath(path), self.message, self._arrays())

    def save_hdf5(self, path: str | os.PathLike[str]) -> None:
        """Write the weights in HDF5, whatever the file is called."""
        write_hdf5(os.fspath(path), self._arrays())

    load_hdf5 = copy_from
