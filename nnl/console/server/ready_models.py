# SPDX-License-Identifier: Apache-2.0
"""A model of a file that is trained at once: what of it is known, and a loss for it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from nnl.console.documents.analysis import analyse
from nnl.console.documents.document import Document, Node, parse, place
from nnl.console.errors import Refused, missing
from nnl.console.machine.sandbox import apart
from nnl.console.machine.store import new_id
from nnl.console.palette.palette import layers
from nnl.console.server.state import Console


def inspect(console: Console, path: Path, name: str) -> dict[str, Any]:
    """What a file holds, and which of its functions nnl does not know."""
    try:
        found = console.opened(path)
    except Refused as refused:
        if refused.code != "unsupported" or path.suffix.lower() != ".onnx":
            raise
        report: dict[str, Any] = apart("operators", path, path.name)
        if report["supported"]:
            raise  # something else is wrong
        return report
    key = new_id()
    content = {"document": found.document.to_json(), "name": Path(name).stem}
    (console.trials.blobs / f"{key}.json").write_text(json.dumps(content))
    analysis = analyse(found.document)
    net = found.document.main
    nodes = analysis["networks"][net.name]["nodes"]
    kinds = [_function(n) for n in net.nodes.values() if n.type not in ("Input", "Output")]
    wrong: dict[str, str] = {}
    for problem in analysis["problems"]:
        node = net.nodes.get(problem["node"] or "")
        if node is not None and problem["severity"] == "error" and problem["code"] != "upstream":
            wrong.setdefault(_function(node), problem["message"])
    functions = [
        {"type": kind, "count": n, "supported": kind not in wrong, "reason": wrong.get(kind)}
        for kind, n in sorted(Counter(kinds).items())
    ]

    def ends(kind: str, keys: Any) -> list[dict[str, Any]]:
        return [
            {"name": net.nodes[k].name, "shape": nodes[k]["outputs"][0]["shape"]}
            for k in keys
            if nodes[k]["outputs"] and (not kind or net.nodes[k].type == kind)
        ]

    return {
        "file": key,
        "format": path.suffix.lower().lstrip("."),
        "functions": functions,
        "supported": not wrong,
        "inputs": ends("Input", net.nodes),
        "outputs": ends("", analysis["outputs"]),
        "report": [{"severity": s, "message": m} for s, m in found.report],
        "parameters": analysis["totals"]["parameters"],
        "multiply_adds": analysis["totals"]["multiply_adds"],
    }


def _function(node: Node) -> str:
    if node.type == "Unknown":
        return str(node.properties.get("function"))
    return node.type


def train(
    console: Console,
    key: str,
    dataset: str,
    max_epoch: int,
    batch_size: int,
    valid: str | None = None,
) -> dict[str, Any]:
    """Train an inspected file on a data set: a trial of a project of its own.

    Args:
        valid: What it is validated on; the same data set if left out.
    """
    path = console.trials.blobs / f"{key}.json"
    if not key.isalnum() or not path.is_file():
        raise missing("file", key[:40])
    content = json.loads(path.read_text())
    document = parse(content["document"])
    add_loss(document, console.datasets.one(dataset)["columns"])
    document.config.update(batch_size=batch_size, max_epoch=max_epoch)
    document.config["dataset"].update(train=dataset, valid=valid or dataset)
    place(document.main)
    project = console.store.add_project(content["name"] or "quick", document)
    return console.trials.add(project["id"])


def add_loss(document: Document, columns: list[dict[str, Any]]) -> None:
    """Name the inputs after the columns of a data set, and end the network with a loss.

    Raises:
        Refused: The data do not fit the network.
    """
    net = document.main
    inputs = [n for n in net.nodes.values() if n.type == "Input"]
    analysis = analyse(document)
    if len(inputs) == 1 and len(columns) >= 2:
        x, y = columns[0], columns[-1]
        shape = inputs[0].properties.get("shape")
        if shape is not None and list(shape) != x["shape"]:
            text = f"the network takes {shape}, the column {x['name']!r} has {x['shape']}"
            raise Refused("invalid", text, "choose another data set", "dataset")
        inputs[0].name = x["name"]
    if analysis["loss"]:
        return
    if len(inputs) != 1 or len(columns) < 2 or len(analysis["outputs"]) != 1:
        text = "wanted a network with one input and one output, and data with two columns"
        raise Refused("invalid", text, "open it in the editor and add a loss")
    end = net.nodes[analysis["outputs"][0]]
    shape = analysis["networks"][net.name]["nodes"][end.id]["outputs"][0]["shape"]
    classes = len(shape) == 2 and shape[1] > 1 and y["shape"] == [1]
    if end.type == "Output":
        source = next(e for e in net.edges if e.target == end.id)
        _delete(document, end)
        end = net.nodes[source.source]
    if classes and end.type == "F.softmax":  # the loss takes what it is computed from
        source = next(e for e in net.edges if e.target == end.id)
        _delete(document, end)
        end = net.nodes[source.source]
    kind = "F.softmax_cross_entropy" if classes else "F.squared_error"
    loss = net.add(kind, net.unused_name("loss"))
    label = net.add("Input", net.unused_name(y["name"]), {"shape": y["shape"]})
    first, second = (p.name for p in layers()[kind].inputs)
    net.connect(end, loss, first)
    net.connect(label, loss, second)


def _delete(document: Document, node: Node) -> None:
    net = document.main
    net.edges = [e for e in net.edges if node.id not in (e.source, e.target)]
    del net.nodes[node.id]
