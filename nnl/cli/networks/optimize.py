# SPDX-License-Identifier: Apache-2.0
"""nnl optimize: a network for inference with fewer functions."""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter, OrderedDict
from typing import Any

import numpy as np

from nnl.cli.networks.verify import random_inputs
from nnl.cli.networks.view import multiply_adds, table
from nnl.converters.formats import WriteOptions, format_of, read_model
from nnl.converters.networks.model import Built, Model, Network
from nnl.converters.rewriting import (
    BatchNormalizationFoldingModifier,
    FunctionModifier,
    GraphConverter,
    RemoveFunctionModifier,
)
from nnl.core.graph.function import Function
from nnl.core.graph.node import capture
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import get_parameters, parameter_scope, set_parameter

TOLERANCE = 1e-3  # of the largest output


def add_commands(commands: Any) -> None:
    """Register the command."""
    p = commands.add_parser(
        "optimize",
        description="Writes a network for inference: without dropout, with batch normalisations "
        "folded into the weights beside them, and products of reshaped matrices as one Affine. "
        "Both networks are run on random input and compared.",
    )
    p.add_argument("input", metavar="INPUT", help=".nnp, .onnx, .pb ...")
    p.add_argument("output", metavar="OUTPUT", help="of any format that convert writes")
    p.add_argument("--json", action="store_true", help="print what has changed as JSON")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Optimise, compare, write and print."""
    if not os.path.exists(args.input):
        raise FileNotFoundError(f"there is no file {args.input}")
    target = format_of(args.output, None, True)
    if target.write is None:
        raise ValueError(f"cannot write the format {target.name}")
    model, _ = read_model([args.input])
    better = Optimized(model)
    before, after = model.network(inference=True), better.network(inference=True)
    gap = _gap(before, after)
    if gap > TOLERANCE:
        raise ArithmeticError(
            f"the outputs differ by {gap:.3g} of the largest one, so nothing was written"
        )
    target.write(better, args.output, WriteOptions())
    facts = {"before": _facts(before), "after": _facts(after)}
    if args.json:
        print(json.dumps({"file": args.output, **facts, "largest_difference": gap}, indent=1))
        return 0
    names = sorted({n for f in facts.values() for n in f["functions"]})
    rows = [("function", "before", "after")]
    rows += [(n, *(str(f["functions"].get(n, "")) for f in facts.values())) for n in names]
    rows += [(k, *(f"{f[k]:,}" for f in facts.values())) for k in ("parameters", "multiply_adds")]
    print("\n".join([args.output, *table(rows, 1), f"  largest difference {gap:.2g}"]))
    return 0


class Optimized(Built):
    """A model whose graph is made simpler each time it is built."""

    def __init__(self, model: Model) -> None:
        self.model, self.where = model, model.where

    def network(self, batch_size: int | None = None, inference: bool = False) -> Network:
        found = self.model.network(batch_size, inference=True)
        passes = [
            RemoveFunctionModifier(["Dropout", "Identity"]),
            AffineModifier(),
            BatchNormalizationFoldingModifier(),
        ]
        with parameter_scope("", found.parameters):
            outputs = GraphConverter(passes).convert(list(found.outputs.values()))
            parameters = get_parameters(grad_only=False)
        used = {
            v.key
            for node in capture([y.edge for y in outputs])
            for v in node.inputs
            if v is not None and v.node is None
        }
        scope: OrderedDict[str, Any] = OrderedDict()
        with parameter_scope("", scope):
            for name, v in parameters.items():
                if v.edge.key in used:
                    set_parameter(name, v)
        ends = dict(zip(found.outputs, outputs, strict=True))
        return Network(found.name, found.inputs, ends, scope)


class AffineModifier(FunctionModifier):
    """Makes an Affine of what some importers write: matrices (n, k) and (k, m) reshaped to
    (1, n, k) and (1, k, m), their product reshaped back, and perhaps a bias of m added."""

    def modify(self, f: Function, inputs: list[Variable]) -> Any:
        from nnl import functions as F

        if f.name == "Reshape":
            product = f.inputs[0].parent
            if product is None or product.name != "BatchMatmul":
                return None
            a, b = (v.parent for v in inputs[0].parent.inputs)
            if not (_adds_an_axis(a) and _adds_an_axis(b)) or any(
                product.args[k] for k in ("transpose_a", "transpose_b")
            ):
                return None
            x, w = a.inputs[0], b.inputs[0]
            return F.affine(x, w) if f.outputs[0].shape == (len(x.d), w.shape[1]) else None
        if f.name == "Add2":
            affine, bias = inputs[0].parent, inputs[1]
            plain = affine is not None and affine.name == "Affine" and len(affine.inputs) == 2
            if plain and bias.parent is None and bias.size == inputs[0].shape[-1]:
                flat = self.derived(bias, "", bias.d.reshape(-1), "b_affine")
                return F.affine(*affine.inputs, flat)
        return None


def _adds_an_axis(f: Function | None) -> bool:
    if f is None or f.name != "Reshape":
        return False
    x, y = f.inputs[0].shape, f.outputs[0].shape
    return len(x) == 2 and y == (1, *x)


def _facts(network: Network) -> dict[str, Any]:
    nodes = capture([v.edge for v in network.outputs.values()])
    with parameter_scope("", network.parameters):
        sizes = [v.size for v in get_parameters(grad_only=False).values()]
    return {
        "functions": dict(Counter(n.op.nnp or n.op.name for n in nodes)),
        "parameters": sum(sizes),
        "multiply_adds": sum(multiply_adds(n) for n in nodes),
    }


def _gap(before: Network, after: Network) -> float:
    """The largest difference of the outputs over the largest output."""
    values = random_inputs(before)
    worst = 0.0
    want, got = before.run(values), after.run(values)
    for name, a in want.items():
        scale = max(float(np.abs(a).max(initial=0.0)), 1e-6)
        worst = max(worst, float(np.abs(a - got[name]).max(initial=0.0)) / scale)
    return worst
