# SPDX-License-Identifier: Apache-2.0
"""Networks as frozen graphs."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from nnl.converters.model import Network
from nnl.converters.tensorflow.operators import Builder
from nnl.converters.tflite.writer import TARGET as LITE
from nnl.converters.tflite.writer import emitted
from nnl.core.atomic import replacing

TARGET = replace(LITE, name="TF_PB")


def save(path: str | os.PathLike[str], network: Network) -> None:
    """Write a network as a frozen graph: placeholders have the names of its inputs, nodes those
    of its outputs.

    Raises:
        CannotLower: TensorFlow lacks functions; all are listed.
        ValueError: The weights are larger than a message can be.
    """
    content = graph_def(network).SerializeToString()
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(content)


def graph_def(network: Network) -> Any:
    """A network as a GraphDef."""
    said = emitted(network, TARGET)
    b = Builder([*said.inputs.values(), *said.outputs.values()])
    for t in said.inputs.values():
        name = b.ends[id(t)]
        b.names[id(t)] = b.node("Placeholder", name=name, dtype=t.dtype, shape=t.shape)
    for op in said.ops:
        b.add(op)
    for t in said.outputs.values():
        b.end(t)
    return b.proto
