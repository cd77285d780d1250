# SPDX-License-Identifier: Apache-2.0
"""Networks of Caffe as models that nnl converts."""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from nnl.converters.caffe.weights import WEIGHTS
from nnl.converters.networks.model import Built, Network
from nnl.dialects.caffe.graph import Graph
from nnl.dialects.caffe.net import TEST, Net
from nnl.logger import logger
from nnl.workspace import Workspace


def is_caffe(paths: Sequence[str]) -> bool:
    """Whether files are Caffe's: weights, or a prototxt with layers."""
    if any(path.endswith(WEIGHTS) for path in paths):
        return True
    if len(paths) != 1 or not paths[0].endswith(".prototxt") or not os.path.exists(paths[0]):
        return False
    with open(paths[0], encoding="utf-8", errors="replace") as file:
        text = file.read(2**16)
    nnabla = re.search(r"^(network|executor|optimizer|parameter|global_config)\s*\{", text, re.M)
    return nnabla is None and re.search(r"\b(layers?\s*\{|input\s*:)", text) is not None


class CaffeModel(Built):
    """A prototxt, and its weights if they are given, for inference."""

    def __init__(self, paths: Sequence[str]) -> None:
        texts = [p for p in paths if not p.endswith(WEIGHTS)]
        weights = [p for p in paths if p.endswith(WEIGHTS)]
        if not texts and len(weights) == 1:  # as nnl writes them, side by side
            beside = weights[0].removesuffix(".h5").removesuffix(".caffemodel") + ".prototxt"
            texts = [beside] if os.path.exists(beside) else []
        if len(texts) != 1 or len(weights) > 1:
            raise ValueError(f"a network of Caffe is a .prototxt and a .caffemodel, got {paths}")
        self.where = texts[0]
        self.scope: OrderedDict[str, Any] = OrderedDict()
        with Workspace(self.scope):
            self.net = Net(texts[0], *weights, TEST, deploy=True)
        if not weights:
            logger.warning("%s: without a .caffemodel, weights are what its fillers say", texts[0])
        self._own = {name: self.net.blobs[name].shape for name in self.net.inputs}

    def network(self, batch_size: int | None = None, inference: bool = False) -> Network:
        net = self.net
        for name, shape in self._own.items():
            first = shape[:1] if batch_size is None else (batch_size,)
            net.blobs[name].reshape(*first, *shape[1:])
        if net.stale:
            net.reshape()
        graph = Graph(net, net.layers)
        inputs = {n: v for n in net.inputs if (v := graph.leaves.get(net.blobs[n])) is not None}
        outputs = {n: graph.values[net.ends[n]] for n in net.outputs if n not in net.inputs}
        names = {v.edge.key: t.key for t, v in graph.values.items()}
        return Network(net.message.name or "net", inputs, outputs, self.scope, names)
