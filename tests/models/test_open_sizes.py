# SPDX-License-Identifier: Apache-2.0
"""All networks of nnl.models with open sizes, each at five random ones: in Python bit for bit what
the program gives that is recorded at that size, in C++ what the closed program gives.

The orders in which convolutions like their values depend on sizes, of tiny pictures at least; where
that is so in a range, an open program keeps the plain order, and bits are equal but for rounding.
"""

from functools import partial

import numpy as np
import pytest

import nnl as nn
from nnl import models as M
from nnl.graph.program.open_program import sizes_of
from nnl.graph.saving.files import write
from nnl.models.stack import Where, attention, feed_forward, stack
from tests.graph.saved import check, normal
from tests.native.kernels import require_library

SIZES = 5
IMAGE = {"x": ("batch", None, "height", "width")}
IDS = {"tokens": ("batch", "length")}
BERT = {"vocabulary": 50, "width": 32, "layers": 2, "heads": 4, "longest": 64, "test": True}


def network(name):
    def net(x):
        return M.build(name, x, num_classes=10, test=True)

    return net, IMAGE, {"x": (1, 3, 64, 64)}, {"height": (33, 160), "width": (33, 160)}


def masked(f):
    def net(tokens, keep):
        return f(tokens, keep=keep, **BERT)

    open = {**IDS, "keep": ("batch", "length")}
    return net, open, {"tokens": (2, 9), "keep": (2, 9)}, {"length": (1, 64)}


def gpt2(tokens):
    return M.gpt2(tokens, **BERT)


def bert(tokens, keep, **options):
    words, pooled = M.bert(tokens, keep=keep, **options)
    return {"words": words, "pooled": pooled}


def encoder(x, mask=False, norm=True):
    kind = {"activation": "gelu_tanh", "joined": True, "causal": mask}
    c = M.Stack(x.shape[2], 4, 4 * x.shape[2], (M.Layer(),) * 3, **kind)
    if norm:
        return stack(x, c, Where())
    for i in range(3):
        x = x + attention(x, c, M.Layer(), Where(), i, f"layer{i}/attention")
        x = x + feed_forward(x, c, f"layer{i}")
    return x


def recurrent(cell):
    def net(tokens):
        return M.recurrent_language_model(tokens, 50, cell, width=24, layers=2, test=True)

    return net, {"tokens": ("time", "batch")}, {"tokens": (7, 3)}, {}


SMALL_IMAGE = {"x": (2, 3, 64, 64)}
BATCH = {"x": ("batch", None, None, None)}
TOKENS = {"x": ("batch", "length", None)}, {"x": (2, 9, 32)}, {"length": (1, 64)}
NETWORKS = {
    **{name: partial(network, name) for name in M.NETWORKS},
    "bert": lambda: masked(bert),
    "bert_masked_language_model": lambda: masked(M.bert_masked_language_model),
    "gpt2": lambda: (gpt2, IDS, {"tokens": (2, 9)}, {"length": (1, 64)}),
    "encoder": lambda: (encoder, *TOKENS),
    "causal": lambda: (partial(encoder, mask=True), *TOKENS),
    "bare": lambda: (partial(encoder, norm=False), *TOKENS),
    "unet": lambda: (partial(M.unet, channels=8, test=True), IMAGE, SMALL_IMAGE, {}),
    "unet_3": lambda: (partial(M.unet, channels=4, depth=3, test=True), IMAGE, SMALL_IMAGE, {}),
    "lenet": lambda: (M.lenet, BATCH, {"x": (2, 1, 28, 28)}, {}),
    "mlp": lambda: (M.mlp, {"x": ("batch", None)}, {"x": (2, 20)}, {}),
    "dcgan_generator": lambda: (
        partial(M.dcgan_generator, channels=8, test=True),
        {"z": ("batch", None)}, {"z": (2, 10)}, {},
    ),
    "dcgan_discriminator": lambda: (
        partial(M.dcgan_discriminator, channels=8, test=True), BATCH, SMALL_IMAGE, {},
    ),
    "resnet18_grey": lambda: (
        lambda x: M.resnet(x, 18, num_classes=3, test=True), IMAGE, {"x": (2, 1, 64, 64)},
        {"height": (33, 160), "width": (33, 160)},
    ),
    "lstm": lambda: recurrent("lstm"),
    "gru": lambda: recurrent("gru"),
    "two_towers": lambda: (
        lambda x, z: nn.functions.batch_matmul(encoder(x), encoder(z), transpose_b=True),
        {"x": ("batch", "a", None), "z": ("batch", "b", None)},
        {"x": (2, 9, 32), "z": (2, 7, 32)}, {"a": (1, 64), "b": (1, 64)},
    ),
}  # fmt: skip
QUICK = ("resnet18", "mobilenet_v3_small", "bert", "causal", "unet_3", "dcgan_generator", "gru")


def drawn(dims, rng):
    """Random sizes in range, of batches small ones."""
    found = {}
    for name, d in dims.items():
        most = min(d.greatest or 160, 6 if name == "batch" else 160)
        found[name] = int(rng.integers(-(-d.least // d.multiple), most // d.multiple + 1))
        found[name] = max(found[name], 1) * d.multiple
    return found


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.long) for n in NETWORKS]
)
def test_any_size_is_as_if_recorded(name, tmp_path):
    net, axes, shapes, ranges = NETWORKS[name]()
    inputs, path = {k: nn.Variable(s) for k, s in shapes.items()}, tmp_path / "open.nnlp"
    nn.save_program(path, net, inputs, open=axes, ranges=ranges)
    found, rng = nn.load_program(path), np.random.default_rng(len(name))
    model, lib = require_library().Model(str(path)), require_library()
    program = found["main"]
    for n in range(SIZES):
        sizes = drawn(program.dims, rng)
        at = {
            k: tuple([sizes.get(a, s) for a, s in zip(axes[k], shapes[k], strict=True)])
            for k in shapes
        }
        values = {k: normal(*s, seed=n) for k, s in at.items()}
        if "tokens" in values:
            values["tokens"] = rng.integers(0, 50, at["tokens"]).astype(np.float32)
        if "keep" in values:
            values["keep"] = (values["keep"] > -1).astype(np.float32)
        variables = {k: nn.Variable(s) for k, s in at.items()}
        nn.save_program(tmp_path / "recorded.nnlp", net(**variables), variables)
        check(found.run(**values), nn.load_program(tmp_path / "recorded.nnlp").run(**values))
        closed = program.at(sizes_of(program, at))
        write(tmp_path / "at.nnlp", {"main": closed}, found.arrays, {})
        for k, v in values.items():
            model.resize(k, v.shape)
        assert model.run(values) == lib.Model(str(tmp_path / "at.nnlp")).run(values), sizes
