# SPDX-License-Identifier: Apache-2.0
"""Which functions C can say."""

from __future__ import annotations

from collections.abc import Callable

import nnl.converters.csrc.calls as calls
from nnl.converters.csrc.memory import MOST
from nnl.converters.csrc.rules import RULES
from nnl.converters.networks.lowering import Target
from nnl.converters.nnp.function_messages import visible_inputs
from nnl.core.graph.node import Node, Value


def target() -> Target:
    """What `lower` asks."""
    return Target("CSRC", _refuses, RULES)


def _refuses(node: Node, is_constant: Callable[[Value], bool]) -> str | None:
    op = node.op
    if not calls.has(op.name):
        return "C source does not have it"
    if op.written(node.attrs):
        return "it changes an input"
    for spec in (*[v.current_spec for v in visible_inputs(node)], *node.out_specs):
        if not 0 < spec.size <= MOST:
            return f"an array has {spec.size} elements, wanted 1 to {MOST}"
    refuses = calls.REFUSES.get(op.name)
    return None if refuses is None else refuses(node)
