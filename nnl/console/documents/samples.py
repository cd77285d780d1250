# SPDX-License-Identifier: Apache-2.0
"""Projects to begin with."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import nnl as nn
from nnl.console.documents.document import Document, Net, place
from nnl.core.arguments.suggest import did_you_mean

logger = logging.getLogger("nnl")


@dataclass(frozen=True)
class Sample:
    """A project to begin with; `document` gets the console, for data sets."""

    id: str
    title: str
    doc: str
    document: Callable[[Any], Document]


def _chain(net: Net, *layers: tuple[str, str, dict[str, Any]]) -> Any:
    """Nodes one after another; returns the last one."""
    from nnl.console.palette.palette import layers as known

    before = None
    for kind, name, properties in layers:
        node = net.add(kind, name, properties)
        if before is not None:
            net.connect(before, node, known()[kind].inputs[0].name)
        before = node
    return before


def digits(console: Any = None) -> Document:
    """Handwritten digits of 8 x 8 pixels, recognised by a small convolutional network."""
    document = Document({"main": Net("main")})
    net = document.main
    loss = _chain(
        net,
        ("Input", "x", {"shape": [1, 8, 8]}),
        ("PF.convolution", "conv1", {"outmaps": 16, "kernel": [3, 3], "pad": [1, 1]}),
        ("F.relu", "relu1", {}),
        ("F.max_pooling", "pool1", {"kernel": [2, 2]}),
        ("PF.convolution", "conv2", {"outmaps": 32, "kernel": [3, 3], "pad": [1, 1]}),
        ("F.relu", "relu2", {}),
        ("PF.affine", "fc", {"n_outmaps": [10]}),
        ("F.softmax_cross_entropy", "loss", {}),
    )
    net.connect(net.add("Input", "y", {"shape": [1]}), loss, "target")
    place(net)
    document.config["batch_size"] = 32
    if console is not None:
        document.config["dataset"].update(_digits(console))
    return document


def _digits(console: Any) -> dict[str, Any]:
    """The data sets of the handwritten digits that scikit-learn brings."""
    if find_spec("sklearn") is None:
        logger.warning("the digits come with scikit-learn: pip install scikit-learn")
        return {}
    train, valid = console.datasets.sample("digits")
    return {"train": train["id"], "valid": valid["id"]}


def resnet_152(console: Any = None) -> Document:
    """The network of 152 layers for pictures of 224 x 224 pixels, with a loss for 1,000 classes."""
    from nnl.console.documents.analysis import ends
    from nnl.console.documents.building import build as built
    from nnl.console.documents.reading import of_network
    from nnl.converters.networks.model import Network
    from nnl.core.parameters.parameter import without_values
    from nnl.models import build

    scope: OrderedDict[str, Any] = OrderedDict()
    with nn.parameter_scope("", scope), nn.auto_forward(False), without_values():
        x = nn.Variable((1, 3, 224, 224))
        y = build("resnet152", x)
    document = of_network(Network("resnet152", {"x": x}, {"y": y}, scope)).document
    net = document.main
    (end,) = ends(document, built(document))[1]
    loss = net.add("F.softmax_cross_entropy", "loss")
    net.connect(net.nodes[end], loss, "x")
    net.connect(net.add("Input", "y", {"shape": [1]}), loss, "target")
    place(net)
    momentum = {"type": "Momentum", "properties": {"lr": 0.1}, "weight_decay": 1e-4}
    document.config["optimizer"] = {**momentum, "schedule": {"type": "cosine"}}
    return document


def empty(console: Any = None) -> Document:
    """An empty network."""
    return Document({"main": Net("main")})


def project_of(console: Any, name: str) -> str:
    """The id of the newest project of a sample, which is made if there is none.

    Raises:
        ValueError: There is no such sample, or the console may not make a project.
    """
    if name not in SAMPLES:
        raise ValueError(f"there is no sample {name!r}{did_you_mean(name, SAMPLES)}")
    sample = SAMPLES[name]
    known = [p["id"] for p in console.store.projects() if p["name"] == sample.title]
    if known:
        return str(known[0])
    if console.read_only:
        raise ValueError(f"there is no project {sample.title!r}, and --read-only makes none")
    return str(console.store.add_project(sample.title, sample.document(console))["id"])


SAMPLES = {
    s.id: s
    for s in (
        Sample("digits", "Handwritten digits", (digits.__doc__ or "").strip(), digits),
        Sample("resnet152", "ResNet-152", (resnet_152.__doc__ or "").strip(), resnet_152),
        Sample("empty", "Empty", (empty.__doc__ or "").strip(), empty),
    )
}
