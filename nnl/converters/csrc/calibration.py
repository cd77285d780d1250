# SPDX-License-Identifier: Apache-2.0
"""The ranges that the arrays of a network take on samples."""

from __future__ import annotations

import numpy as np

from nnl.converters.csrc.steps import Key
from nnl.converters.networks.lowering import Lowered
from nnl.converters.networks.model import Network
from nnl.converters.networks.samples import Samples, batches
from nnl.core.graph.node import Value
from nnl.core.graph.variable import Variable, forward_all


def ranges_of(lowered: Lowered, samples: Samples) -> dict[Key, tuple[float, float]]:
    """The smallest and the largest number of inputs and of all that is computed.

    Args:
        samples: For each input an array of samples, one after the other.
    """
    network = Network("", {n: Variable.on(v) for n, v in lowered.inputs.items()}, {})
    computed = [
        Value.of(node, i, spec, False, node.outs[i])  # type: ignore[index]
        for node in lowered.nodes
        for i, spec in enumerate(node.out_specs)
    ]
    arrays = {v.key: Variable.on(v) for v in (*lowered.inputs.values(), *computed)}
    found: dict[Key, tuple[float, float]] = {}
    for values, _ in batches(samples, network):
        for name, v in network.inputs.items():
            v.d = values[name]
        forward_all([v for v in arrays.values() if v.parent is not None])
        for key, v in arrays.items():
            y = v.d[np.isfinite(v.d)]
            low, high = found.get(key, (0.0, 0.0))
            found[key] = min(low, float(y.min(initial=0))), max(high, float(y.max(initial=0)))
    return found
