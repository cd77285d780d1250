# SPDX-License-Identifier: Apache-2.0
"""Loops of console files are unrolled as NNabla unrolls them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nnl as nn
from nnl.converters.nnp.loops import expand_loops
from nnl.converters.nnp.messages import parse
from tests.converters.loop_networks import NETWORKS
from tests.interop.bridge import Nnabla

pytestmark = pytest.mark.interop

SCRIPT = """
import logging
logging.disable(logging.CRITICAL)
from nnabla.utils.load import load
info = load(PATH)
lines = []
for f in info.proto_graph.as_proto().network[0].function:
    lines.append('%s %s %s > %s' % (f.name, f.type, ' '.join(f.input), ' '.join(f.output)))
outputs['functions'] = np.frombuffer('|'.join(sorted(lines)).encode(), np.uint8)
v = {k: p.variable_instance for k, p in info.networks['n'].variables.items()}
for k in ('x', 'init'):
    if k in v:
        v[k].d = inputs[k + str(v[k].ndim)]
for k, p in nn.get_parameters().items():
    p.d = inputs['W'] * (1 + sum(map(ord, k)) % 7)
v['y'].forward()
outputs['y'] = v['y'].d
"""


@pytest.mark.parametrize("name", NETWORKS)
def test_functions_names_and_results_are_those_of_nnabla(
    nnabla: Nnabla, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "n.nntxt"
    path.write_text(NETWORKS[name])
    rng = np.random.default_rng(3)
    shapes = {"x2": (2, 4), "x3": (2, 3, 4), "init2": (2, 4), "W": (4, 4)}
    inputs = {k: 0.2 * rng.normal(size=s).astype(np.float32) for k, s in shapes.items()}
    theirs = nnabla.exec(f"PATH = {str(path)!r}\n" + SCRIPT, inputs)
    message = parse("NNablaProtoBuf", path.read_bytes(), True, "f").network[0]
    lines = [
        f"{f.name} {f.type} {' '.join(f.input)} > {' '.join(f.output)}"
        for f in expand_loops(message, "f").function
    ]
    assert bytes(theirs["functions"]).decode().split("|") == sorted(lines)
    nn.clear_parameters()
    from nnl.utils.load import load

    v = {k: p.variable_instance for k, p in load(path).networks["n"].variables.items()}
    for k in ("x", "init"):
        if k in v:
            v[k].d = inputs[k + str(v[k].ndim)]
    for k, p in nn.get_parameters().items():
        p.d = inputs["W"] * (1 + sum(map(ord, k)) % 7)
    v["y"].forward()
    nn.clear_parameters()
    np.testing.assert_allclose(v["y"].d, theirs["y"], rtol=1e-5, atol=1e-6)
