# SPDX-License-Identifier: Apache-2.0
"""Run the shape rules of a recorded graph again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nnl.core.arguments.origin import tell
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.memory_record import PLAIN
from nnl.core.graph.dispatch import bind
from nnl.core.graph.node import Node


def infer_again(nodes: Iterable[Node]) -> None:
    """Run the shape rules from the leaves' present specs and update the arrays of the nodes."""
    for node in nodes:
        if hasattr(node.attrs, "counts"):
            node.attrs = _counted_again(node)
        specs = tuple([None if v is None else v.current_spec for v in node.inputs])
        try:
            node.out_specs = bind(node.op, node.attrs, node.target, specs).out_specs
            if node.outs is None:  # recorded in dynamic mode
                node.outs = tuple([NdArray.unwritten(s) for s in node.out_specs])
            for nd, spec in zip(node.outs, node.out_specs, strict=True):
                if nd.spec is not spec and not nd.fit(spec, node.op.name):
                    nd.spec, nd.bufs, nd.record = spec, {}, PLAIN
        except (ValueError, TypeError) as e:
            tell(e, node.op.name, node.label)
            raise


def _counted_again(node: Node) -> Any:
    """The attributes of a node with `count` from the present value of the input it follows from."""
    value = node.inputs[node.op.inputs.index(node.attrs.counts)]
    if value is None or value.node is not None or "host" not in value.array.bufs:
        return node.attrs  # computed by the graph, or not written: as when the function was called
    count = node.attrs.count_of(value.array.read("host"))
    return node.op.attrs(**{**node.attrs.as_dict(), "count": count})
