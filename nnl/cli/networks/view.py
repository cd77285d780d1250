# SPDX-License-Identifier: Apache-2.0
"""nnl summary: a readable summary of a network, of programs, or of a file of weights."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from nnl.cli.errors import UsageError
from nnl.converters.formats import is_programs, read_model
from nnl.converters.nnp.archive import read_files
from nnl.converters.weights import EXTENSIONS, read_weights
from nnl.core.graph.node import Node, capture
from nnl.graph import load_program
from nnl.graph.program.costs import multiply_adds, operations


def add_commands(commands: Any) -> None:
    """Register the command."""
    for name in ("summary", "view"):  # the second is its older name
        p = commands.add_parser(
            name,
            description="FILE is a network (.onnx, .nnp, .nntxt ...; several that belong "
            "together), programs (.nnlp), or weights (.h5, .safetensors, .pt, .pth, .npz).",
        )
        p.add_argument("files", nargs="+", metavar="FILE")
        p.add_argument("-b", "--batch-size", type=int, metavar="N", help="(default: the file's)")
        p.add_argument("--json", action="store_true", help="as JSON")
        p.set_defaults(run=view)


def view(args: argparse.Namespace) -> int:
    """Print the summary."""
    if args.batch_size is not None and args.batch_size < 1:
        raise UsageError(f"-b is {args.batch_size}, wanted at least 1")
    if is_programs(args.files[0]):
        _view_programs(args)
        return 0
    arrays = _weights(args.files)
    if arrays is not None:
        summary, text = _summary_of_weights(args.files, arrays), _readable_weights
    else:
        summary, text = _summary(args), _readable
    print(json.dumps(summary, indent=1) if args.json else text(summary))
    return 0


# ---- programs ----


def _view_programs(args: argparse.Namespace) -> None:
    """Print the steps of programs, and totals."""
    if len(args.files) > 1:
        raise ValueError(f"programs are viewed one file at a time, got {', '.join(args.files)}")
    if args.batch_size is not None:
        raise ValueError(f"{args.files[0]}: -b is for networks, a program has its own batch size")
    found = load_program(args.files[0])
    totals = {name: _totals(found, name) for name in found}
    if args.json:
        programs = {name: {**totals[name], "program": found.data(name)} for name in found}
        arrays = {n: {"shape": nd.spec.shape, "dtype": nd.spec.dtype.name, "bytes": nd.spec.nbytes}
                  for n, nd in found.arrays.items()}  # fmt: skip
        print(json.dumps({"file": found.where, "programs": programs, "arrays": arrays}, indent=1))
        return
    memory = _bytes(sum(nd.spec.nbytes for nd in found.arrays.values()))
    print(f"{found.where}, {len(found)} programs, {len(found.arrays)} arrays ({memory})")
    for name in found:
        print(f"\nprogram {name}\n{found[name].text()}\n")
        t = totals[name]
        print(
            f"  {t['steps']} steps, {t['parameters']:,} parameters and {t['fixed_parameters']:,} "
            f"other numbers ({_bytes(t['array_bytes'])})\n"
            f"  {t['operations']:,} operations, {_bytes(t['bytes'])} read and written"
        )


def _totals(programs: Any, name: str) -> dict[str, Any]:
    costs = programs.costs(name)
    slots = {s.name: s for s in programs[name].slots if s.given and s.name in programs.arrays}
    trained = sum(s.spec.size for s in slots.values() if s.role == "parameter")
    return {
        "inputs": {n: s.shape for n, s in programs.inputs(name).items()},
        "outputs": {n: s.shape for n, s in programs.outputs(name).items()},
        "steps": len(costs),
        "parameters": trained,
        "fixed_parameters": sum(s.spec.size for s in slots.values()) - trained,
        "array_bytes": sum(s.spec.nbytes for s in slots.values()),
        "operations": sum(flops for _, flops, _ in costs),
        "bytes": sum(moved for _, _, moved in costs),
    }


# ---- weights ----


def _weights(files: list[str]) -> dict[str, Any] | None:
    """Arrays by name, if the files hold nothing else."""
    kinds = {os.path.splitext(f)[1].lower() for f in files}
    if kinds <= set(EXTENSIONS):
        return {n: a for f in files for n, a in read_weights(f).items()}
    if kinds <= {".h5", ".protobuf", ".nnp"}:
        content = read_files(files, "", "nnl")
        if not content.proto.network:
            return {p.name: p.value for p in content.stored}
    return None


def _summary_of_weights(files: list[str], arrays: dict[str, Any]) -> dict[str, Any]:
    return {
        "file": ", ".join(files),
        "arrays": {
            n: {"shape": list(a.shape), "dtype": a.dtype.name, "bytes": a.nbytes}
            for n, a in arrays.items()
        },
        "parameters": sum(a.size for a in arrays.values()),
        "parameter_bytes": sum(a.nbytes for a in arrays.values()),
    }


def _readable_weights(s: dict[str, Any]) -> str:
    rows = [("array", "shape", "type", "memory")]
    rows += [
        (n, shape_text(a["shape"]), a["dtype"], _bytes(a["bytes"])) for n, a in s["arrays"].items()
    ]
    total = (
        f"  {len(s['arrays'])} arrays, {s['parameters']:,} numbers ({_bytes(s['parameter_bytes'])})"
    )
    return "\n".join([f"{s['file']}", "", *table(rows, 3), "", total])


# ---- networks ----


def _summary(args: argparse.Namespace) -> dict[str, Any]:
    """Inputs, outputs, layers with shapes, parameters, multiply-adds and memory."""
    model, source = read_model(args.files)
    network = model.network(args.batch_size, inference=True)
    nodes = capture([v.edge for v in network.outputs.values()])
    weights = dict(_flat(network.parameters))
    names = {v.edge.key: n for n, v in weights.items()}
    layers = [_layer(node, names) for node in nodes]
    trained = sum(v.size for v in weights.values() if v.need_grad)
    return {
        "file": ", ".join(args.files),
        "format": source.name,
        "network": network.name,
        "inputs": {n: list(v.shape) for n, v in network.inputs.items()},
        "outputs": {n: list(v.shape) for n, v in network.outputs.items()},
        "layers": layers,
        "parameters": trained,
        "fixed_parameters": sum(v.size for v in weights.values()) - trained,
        "parameter_bytes": sum(v.spec.nbytes for v in weights.values()),
        "multiply_adds": sum(row["multiply_adds"] for row in layers),
        "operations": sum(row["operations"] for row in layers),
        "activation_bytes": sum(row["bytes"] for row in layers),
    }


def _flat(scope: Any, path: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, entry in scope.items():
        name = f"{path}/{key}" if path else key
        found += _flat(entry, name) if isinstance(entry, dict) else [(name, entry)]
    return found


def _layer(node: Node, parameters: dict[Any, str]) -> dict[str, Any]:
    used = [v for v in node.inputs if v is not None and v.key in parameters]
    outs = node.out_specs[: node.op.visible] if not node.op.variadic_out else node.out_specs
    return {
        "function": node.op.nnp or node.op.name,
        "shape": [list(s.shape) for s in outs],
        "parameters": sum(v.current_spec.size for v in used),
        "parameter_names": [parameters[v.key] for v in used],
        "multiply_adds": multiply_adds(node),
        "operations": operations(node),
        "bytes": sum(s.nbytes for s in outs),
    }


def _readable(s: dict[str, Any]) -> str:
    lines = [f"{s['file']} ({s['format']}), network {s['network']}"]
    for kind in ("inputs", "outputs"):
        lines += [f"  {kind[:-1]:8}{n}  {shape_text(shape)}" for n, shape in s[kind].items()]
    rows = [("layer", "output", "parameters", "multiply-adds", "memory")]
    for i, r in enumerate(s["layers"]):
        shape = ", ".join(shape_text(d) for d in r["shape"])
        count = f"{r['parameters']:,}" if r["parameters"] else ""
        adds = f"{r['multiply_adds']:,}" if r["multiply_adds"] else ""
        rows.append((f"{i} {r['function']}", shape, count, adds, _bytes(r["bytes"])))
    fixed = f" and {s['fixed_parameters']:,} fixed ones" if s["fixed_parameters"] else ""
    return "\n".join(
        [
            *lines,
            "",
            *table(rows, 2),
            "",
            f"  {len(s['layers'])} layers, {s['parameters']:,} parameters{fixed} "
            f"({_bytes(s['parameter_bytes'])})",
            f"  {s['multiply_adds']:,} multiply-adds, {s['operations']:,} operations in all, "
            f"{_bytes(s['activation_bytes'])} of activations",
        ]
    )


def table(rows: list[tuple[str, ...]], left: int) -> list[str]:
    """Rows with columns of one width, the first `left` ones aligned to the left."""
    columns = range(len(rows[0]))
    widths = [max(len(r[i]) for r in rows) for i in columns]
    return [
        "  "
        + "  ".join(
            r[i].ljust(widths[i]) if i < left else r[i].rjust(widths[i]) for i in columns
        ).rstrip()
        for r in rows
    ]


def shape_text(shape: Any) -> str:
    """A shape as Python writes a tuple."""
    return str(tuple(shape))


def _bytes(n: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    raise AssertionError("unreachable")
