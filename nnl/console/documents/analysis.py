# SPDX-License-Identifier: Apache-2.0
"""Shapes, costs and errors of every node of a document, from the graph that it becomes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from nnl.console.documents.building import Graph, Placed, build
from nnl.console.documents.document import COLUMN, ROW, Document, Net
from nnl.console.palette.palette import Layer, layers, title
from nnl.console.palette.problems import Problem
from nnl.core.graph.node import Node
from nnl.core.graph.variable import Variable
from nnl.core.ops.elementwise import NAMES, program_of
from nnl.graph.program.costs import multiply_adds, operations

COUNTS = (
    "multiply_adds",
    "operations",
    "adds",
    "multiplies",
    "divisions",
    "exps",
    "ifs",
    "bytes",
)
# What the instructions of element-wise programs count as; others, as roundings, as nothing.
_CODES = {
    name: kind
    for kind, names in {
        "adds": "add subtract squared_difference",
        "multiplies": "multiply square cube",
        "divisions": "divide inverse inverse_root",
        "exps": """exp expm1 log log1p sin cos tan sinc sinh cosh tanh asin acos atan asinh acosh
            atanh erf sigmoid log_sigmoid swish gelu mish softplus power root atan2 elu""",
        "ifs": """relu maximum minimum larger smaller where clip leaky_relu absolute sign signs
            equal not_equal greater greater_equal less less_equal""",
    }.items()
    for name in names.split()
}
# Losses that take what these functions are computed from, and stand in their place.
_BEFORE = {"F.softmax": "F.softmax_cross_entropy", "F.sigmoid": "F.sigmoid_cross_entropy"}
Shape = tuple[int, ...]


def analyse(
    document: Document, columns: Mapping[str, Shape] | None = None, revision: Any = None
) -> dict[str, Any]:
    """All that the page shows of a document while it is edited; numbers are for one sample.

    Args:
        columns: Shapes of the data set's columns.
        revision: Handed back, so that the page knows which edit this is about.
    """
    begin = time.perf_counter()
    graph = build(document, columns=columns)
    used = {p.net.name for p in graph.placed.values()}
    problems = graph.problems()
    names = {v.edge.key: (n, v) for n, v in graph.parameters().items()}
    networks: dict[str, Any] = {}
    for net in document.networks.values():
        if net.name in used:
            networks[net.name] = _network(net, graph, names)
        else:
            apart, part = _alone(document, net, columns)
            own = {v.edge.key: (n, v) for n, v in part.parameters().items()}
            networks[net.name] = _network(net, part, own)
            problems += apart
    losses, outputs = ends(document, graph)
    problems += _remarks(document, graph, losses, outputs, columns or {})
    wrong = any(p.severity == "error" for p in problems)
    return {
        "revision": revision,
        "ms": round((time.perf_counter() - begin) * 1e3, 2),
        "networks": networks,
        "totals": networks[document.main.name]["totals"],
        "loss": losses,
        "outputs": outputs,
        "problems": [asdict(p) for p in problems],
        "trainable": bool(losses) and not wrong,
    }


def _alone(
    document: Document, net: Net, columns: Mapping[str, Shape] | None
) -> tuple[list[Problem], Graph]:
    """A unit that nothing uses, by itself."""
    rest = [n for n in document.networks.values() if n is not net]
    turned = Document({n.name: n for n in (net, *rest)}, document.config)
    open_ = {n.name for n in net.nodes.values() if n.properties.get("shape") is None}
    graph = build(turned, columns={k: v for k, v in (columns or {}).items() if k in open_})
    return [p for p in graph.problems() if p.network == net.name], graph


def _network(net: Net, graph: Graph, names: Mapping[Any, tuple[str, Variable]]) -> dict[str, Any]:
    """Its nodes where they stand first, and totals."""
    first: dict[str, Placed] = {}
    for p in graph.placed.values():
        if p.net is net and (not first or p.path == next(iter(first.values())).path):
            first.setdefault(p.node.id, p)
    nodes, totals, every = {}, Counter[str](), {}
    for key, p in first.items():
        entry, parameters = _node(p, graph, names)
        nodes[key] = entry
        every.update(parameters)
        totals.update({name: entry[name] for name in COUNTS})
    trained = sum(v.size for v in every.values() if v.need_grad)
    counted = {name: totals[name] for name in COUNTS}
    counted["parameters"] = trained
    counted["fixed_parameters"] = sum(v.size for v in every.values()) - trained
    counted["nodes"] = len(nodes)
    return {"nodes": nodes, "totals": counted}


def _node(
    p: Placed, graph: Graph, names: Mapping[Any, tuple[str, Variable]]
) -> tuple[dict[str, Any], dict[str, Variable]]:
    inside = [p]
    if p.node.type == "Unit":
        path = (*p.path, p.node.id)
        inside = [q for q in graph.placed.values() if q.path[: len(path)] == path]
    layer = layers().get(p.node.type)
    made = [n for q in inside for n in q.made]
    parameters: dict[str, Variable] = {}
    for n in made:
        for v in n.inputs:
            if v is not None and v.node is None and v.key in names:
                name, found = names[v.key]
                parameters[name] = found
    if p.node.type == "Parameter":
        parameters.update(names[v.edge.key] for v in p.outputs if v.edge.key in names)
    trained = sum(v.size for v in parameters.values() if v.need_grad)
    entry: dict[str, Any] = {
        "outputs": [_output(layer, p, i, v) for i, v in enumerate(p.outputs)],
        "parameters": trained,
        "fixed_parameters": sum(v.size for v in parameters.values()) - trained,
        "parameter_shapes": {n: list(v.shape) for n, v in parameters.items()},
        **counts(made),
        "values": _values(layer, p) if layer is not None else {},
        "errors": [asdict(e) for e in p.problems],
    }
    entry["bytes"] = sum(v.spec.nbytes for q in inside for v in q.outputs if q.made)
    return entry, parameters


def counts(made: list[Node]) -> dict[str, int]:
    """What functions compute; bytes are left at 0."""
    found = dict.fromkeys(COUNTS, 0)
    for n in made:
        products = multiply_adds(n)
        found["multiply_adds"] += products
        found["operations"] += operations(n)
        found["adds"] += products
        found["multiplies"] += products
        specs = [v.current_spec.shape for v in n.inputs if v is not None]
        program = program_of(n.op.name, n.attrs.as_dict(), specs)
        if program is not None:
            size = n.out_specs[0].size
            for code in program.code[::4]:
                name = NAMES[code]
                if name == "multiply_add":
                    found["adds"] += size
                    found["multiplies"] += size
                elif name in _CODES:
                    found[_CODES[name]] += size
    return found


def _output(layer: Layer | None, p: Placed, i: int, v: Variable) -> dict[str, Any]:
    ports = layer.outputs if layer is not None and p.node.type != "Unit" else ()
    name = ports[i].name if i < len(ports) and len(p.outputs) <= len(ports) else f"y{i}"
    if p.node.type == "Unit" and len(p.outputs) == 1:
        name = "y"
    batch = p.sampled and v.shape[:1] == (1,)
    return {"name": name, "shape": list(v.shape), "batch": batch, "dtype": v.spec.dtype.name}


def _values(layer: Layer, p: Placed) -> dict[str, Any]:
    """What properties became that were left to nnl."""
    found: dict[str, Any] = {}
    automatic = [
        q.name for q in layer.properties if q.optional and p.node.properties.get(q.name) is None
    ]
    for n in p.made:
        attrs = n.attrs.as_dict()
        for name in automatic:
            value = attrs.get(name)
            if value is not None:
                found[name] = list(value) if isinstance(value, tuple) else value
    if p.node.type == "Input" and p.outputs and "shape" in automatic:
        found["shape"] = list(p.outputs[0].shape[1:])
    return found


def ends(document: Document, graph: Graph) -> tuple[list[str], list[str]]:
    """Ids of the nodes of the main network that are losses, and that are outputs.

    A loss is what nothing reads and is of a layer of losses, or else gives a single number for the
    batch. Outputs are Output nodes; without any, what losses compare, or what nothing reads.
    """
    net = document.main
    read = {e.source for e in net.edges}
    last = [k for k, n in net.nodes.items() if k not in read and n.type not in ("Output", "Input")]
    known = layers()
    losses = [k for k in last if (layer := known.get(net.nodes[k].type)) and layer.loss]
    if not losses:
        single = [k for k in last if (p := graph.placed[(k,)]).outputs and p.outputs[0].size == 1]
        losses = [k for k in single if graph.placed[(k,)].outputs[0].shape == ()]
    outputs = [k for k, n in net.nodes.items() if n.type == "Output"]
    if not outputs:
        into = net.into()
        outputs = [k for k in last if k not in losses]
        for key in losses:
            edges = into[key]
            layer = known[net.nodes[key].type]
            first = [e for e in edges if layer.inputs and e.name == layer.inputs[0].name] or edges
            if first and first[0].source not in outputs:
                outputs.append(first[0].source)
    return losses, outputs


def _remarks(
    document: Document,
    graph: Graph,
    losses: list[str],
    outputs: list[str],
    columns: Mapping[str, Shape],
) -> list[Problem]:
    net = document.main
    if not net.nodes:
        return [Problem("no_loss", "the network is empty", net.name, severity="warning")]
    if losses:
        return _without_data(net, columns)
    text = "there is no loss to train with: end the network with a layer of the category Loss"
    fix = None
    if len(outputs) == 1 and net.nodes[outputs[0]].type != "Output":
        given = graph.placed[(outputs[0],)].outputs
        if given:  # what is wrong has none, and no loss would make it right
            fix = _add_loss(net, outputs[0], given[0].shape)
    return [Problem("no_loss", text, net.name, fix=fix, severity="warning")]


def _without_data(net: Net, columns: Mapping[str, Shape]) -> list[Problem]:
    """Inputs that the data set has no column for."""
    if not columns:
        return []
    inputs = {n.name: n for n in net.nodes.values() if n.type == "Input"}
    free = [name for name in columns if name not in inputs]
    lacking = [n for name, n in inputs.items() if name not in columns]
    found = []
    for node in lacking:
        fix = None
        if len(free) == len(lacking) == 1:
            edit = {"op": "rename", "network": net.name, "node": node.id, "value": free[0]}
            fix = {"label": f"Call it {free[0]}", "edits": [edit]}
        text = f"the data set has no column {node.name!r}; it has {', '.join(columns)}"
        found.append(Problem("no_data", text, net.name, node.id, fix=fix, severity="warning"))
    return found


def _add_loss(net: Net, end: str, shape: Shape) -> dict[str, Any]:
    """A loss below an end of this shape: of two, the one that its numbers are made for."""
    last = net.nodes[end]
    source, out, kind = end, 0, "F.softmax_cross_entropy"
    edits: list[dict[str, Any]] = []
    before = [e for e in net.edges if e.target == end]
    if last.type in _BEFORE and len(before) == 1:  # twice a softmax would hardly learn
        source, out, kind = before[0].source, before[0].out, _BEFORE[last.type]
        edits.append({"op": "delete_node", "network": net.name, "node": end})
    elif len(shape) < 2 or shape[1:] == (1,):  # one number is no choice among classes
        kind = "F.squared_error"
    wanted, properties = shape[1:], {}
    if kind == "F.softmax_cross_entropy":
        wanted = (1, *shape[2:])
        if len(shape) > 2:  # classes of every pixel
            properties = {"axis": 1}
    grown = Net(net.name, dict(net.nodes))
    label = grown.add("Input", net.unused_name("y"), {"shape": list(wanted)})
    loss = grown.add(kind, net.unused_name("loss"), properties)
    loss.x, loss.y = last.x, last.y + (ROW if source == end else 0)
    label.x, label.y = last.x + COLUMN, loss.y - ROW
    edits += [{"op": "add_node", "network": net.name, "value": n.to_json()} for n in (label, loss)]
    ports = [p.name for p in layers()[kind].inputs]
    for (start, number), name in zip(((source, out), (label.id, 0)), ports, strict=False):
        edge = {"id": f"{start}-{loss.id}", "source": start, "out": number, "target": loss.id}
        edits.append({"op": "add_edge", "network": net.name, "value": {**edge, "in": name}})
    return {"label": f"Add {title(layers()[kind].function).lower()}", "edits": edits}
