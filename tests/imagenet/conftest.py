# SPDX-License-Identifier: Apache-2.0
"""examples/imagenet as modules, and a network small enough for tests."""

from __future__ import annotations

import importlib
import signal
import sys
from pathlib import Path

import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.models import NETWORKS
from nnl.models.catalogue import Network
from nnl.models.convolution import conv_bn, pooled

FOLDER = Path(__file__).parents[2] / "examples" / "imagenet"
MODULES = ("options", "step", "checkpoint", "report", "export", "train")


def tiny(x, num_classes=1000, test=False, dropout=0.3):
    """A convolution, dropout, and a classifier."""
    h = pooled(conv_bn(x, 4, 3, "stem", test, stride=2))
    h = h if test or not dropout else F.dropout(h, dropout)
    return PF.affine(h, num_classes, name="classifier")


@pytest.fixture
def script(monkeypatch):
    """The modules of examples/imagenet, as an object."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in ("tiny", "other"):
        monkeypatch.setitem(NETWORKS, name, Network(tiny, 32))
    before, modules = signal.getsignal(signal.SIGTERM), dict(sys.modules)
    found = {name: importlib.import_module(name) for name in MODULES}
    yield type("Script", (), found)
    signal.signal(signal.SIGTERM, before)
    for name in MODULES:  # other folders have modules of these names
        sys.modules.pop(name)
        if name in modules:
            sys.modules[name] = modules[name]


@pytest.fixture
def start(script, monkeypatch):
    """Run train.py with the tiny network on drawn pictures, without curves; its exit code."""
    monkeypatch.setattr(script.report, "curves", lambda *_: None)  # a second

    def run(out, *more):
        nn.clear_parameters()
        usual = "--network tiny --engine synthetic --samples 24 --batch-size 4 --epochs 2"
        return script.train.main([*usual.split(), "--out", str(out), *map(str, more)])

    return run
