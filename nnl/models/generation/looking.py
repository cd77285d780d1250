# SPDX-License-Identifier: Apache-2.0
"""What a network looks at: the weights of its attention, which its kernels do not keep."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.core.graph.node import capture
from nnl.core.graph.variable import Variable, forward_all

Array = np.ndarray[Any, Any]


def attention_weights(y: Variable) -> list[Array]:
    """(B, H, T, S) for each attention below a result, in order: what it gives of unit vectors.

    So they are the weights of its own kernel, with everything that it knows of masks and windows.
    """
    found = []
    for node in capture([y.edge]):
        if node.op.name != "attention":
            continue
        q, k, _, *more = (None if edge is None else Variable.on(edge) for edge in node.inputs)
        assert q is not None and k is not None
        batch, groups, length = k.shape[:3]
        units = np.broadcast_to(np.eye(length, dtype=np.float32), (batch, groups, length, length))
        found.append(node.op(q, k, Variable.from_numpy_array(units), *more, **node.attrs.as_dict()))
    forward_all(found)
    return [w.d for w in found]
