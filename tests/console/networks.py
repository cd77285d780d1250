# SPDX-License-Identifier: Apache-2.0
"""Documents that the tests draw."""

from nnl.console.documents.document import Document, Net
from nnl.console.palette.palette import layers


def chain(*given, loss=None):
    """A document of layers one after another, given as (type, name, properties)."""
    document = Document({"main": Net("main")})
    net, before = document.main, None
    for kind, name, *properties in given:
        node = net.add(kind, name, *properties)
        if before is not None:
            net.connect(before, node, layers()[kind].inputs[0].name)
        before = node
    if loss is not None:
        end = net.add(loss, "loss")
        inputs = layers()[loss].inputs
        net.connect(before, end, inputs[0].name)
        net.connect(net.add("Input", "y", {"shape": [1]}), end, inputs[1].name)
    return document


def lenet(**convolution):
    """The example of the tests: 28 x 28 pixels, one convolution, one affine layer."""
    return chain(
        ("Input", "x", {"shape": [1, 28, 28]}),
        ("PF.convolution", "conv", {"outmaps": 16, "kernel": [5, 5], **convolution}),
        ("F.relu", "relu"),
        ("F.max_pooling", "pool", {"kernel": [2, 2]}),
        ("PF.affine", "fc", {"n_outmaps": [10]}),
        loss="F.softmax_cross_entropy",
    )


def named(net, name):
    """The node of this name."""
    return next(n for n in net.nodes.values() if n.name == name)
