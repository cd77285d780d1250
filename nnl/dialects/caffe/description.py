# SPDX-License-Identifier: Apache-2.0
"""What the layers and blobs of a network are called."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from nnl.dialects.caffe.layer import Blob, Layer


class Described:
    """The names of a Net."""

    layers: list[Layer]
    blobs: OrderedDict[str, Blob]
    ends: dict[str, Blob]
    loss_weights: dict[Any, float]

    @property
    def layer_dict(self) -> OrderedDict[str, Layer]:
        """The layers by name."""
        return OrderedDict((layer.name, layer) for layer in self.layers)

    @property
    def _layer_names(self) -> list[str]:
        return [layer.name for layer in self.layers]

    @property
    def bottom_names(self) -> OrderedDict[str, list[str]]:
        """{layer: names of its bottoms}."""
        return OrderedDict((layer.name, list(layer.message.bottom)) for layer in self.layers)

    @property
    def top_names(self) -> OrderedDict[str, list[str]]:
        """{layer: names of its tops}."""
        return OrderedDict((layer.name, list(layer.message.top)) for layer in self.layers)

    @property
    def blob_loss_weights(self) -> OrderedDict[str, float]:
        """{blob: its weight in the loss, 0 if it is no part of it}."""
        return OrderedDict((n, self.loss_weights.get(self.ends[n], 0.0)) for n in self.blobs)
