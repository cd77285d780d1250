# SPDX-License-Identifier: Apache-2.0
"""Level 0: gradients of single operators against numeric ones, which ONNX's own numpy gives.

Numeric derivatives are central differences along one random direction per input, computed in
float64: they are good to many more digits than the gradients that they judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from nnl.converters.onnx.file import operators
from nnl.converters.onnx.file.model import Graph, Model
from nnl.deep500 import network_class
from nnl.deep500.cases import Case
from nnl.deep500.contract import GRADIENT, Network
from nnl.deep500.operators import PASS, WRONG, Result, attempt, evaluated

UNDEFINED = "undefined"  # there is no gradient to compare with
STEP = 1e-6
TOLERANCE = 1e-3  # of the derivative, or of 1: float32 all the way there and back


def gradients(tests: Iterable[Case], backend: str) -> Iterator[Result]:
    """Check the gradients of every float32 input of every test.

    gradient_error is the largest difference from the numeric derivative. Where an operator is not
    differentiable in the numbers of the test - outside of its domain, or at a kink - the result is
    "undefined".
    """
    return (attempt(case, backend, _gradient) for case in tests)


def _gradient(case: Case, backend: str) -> tuple[str, str, dict[str, Any]]:
    inputs, expected = case.data[0]
    names = [n for n, v in inputs.items() if _single(v)]
    output = next((n for n, v in expected.items() if _single(v)), None)
    if not names or output is None:
        return UNDEFINED, "no float32 input and output", {}
    rng = np.random.default_rng(0)
    weight = rng.normal(size=expected[output].shape).astype(np.float32)
    ways = {n: rng.normal(size=inputs[n].shape) for n in names}
    numeric, undefined = {}, []
    for name in names:
        slope = _slope(case, inputs, name, ways[name], output, weight)
        if isinstance(slope, str):
            undefined.append(f"{name}: {slope}")
        else:
            numeric[name] = slope
    if not numeric:
        return UNDEFINED, "; ".join(undefined), {}
    net = _trained_by(case, backend, inputs, names, output, weight)
    net.inference_and_backprop({})
    worst, where = 0.0, ""
    for name, slope in numeric.items():
        (grad,) = net.fetch([name + GRADIENT])
        got = float((grad.astype(np.float64) * ways[name]).sum())
        error = abs(got - slope) / max(1.0, abs(slope))
        if not error <= worst:  # nan is worst
            worst, where = error, f"{name}: {got:.6g}, wanted {slope:.6g}"
    net.teardown()
    if not worst <= TOLERANCE:
        return WRONG, where, {"gradient_error": worst}
    return PASS, "; ".join(undefined), {"gradient_error": worst}


def _single(v: Any) -> bool:
    return isinstance(v, np.ndarray) and v.dtype == np.float32 and v.size > 0


def _slope(case: Case, inputs: Any, name: str, way: Any, output: str, weight: Any) -> float | str:
    """The derivative along a direction, or why there is none."""

    def value(step: float) -> Any:
        moved = {**inputs, name: inputs[name].astype(np.float64) + step * way}
        outs = evaluated(case, moved)
        y = None if outs is None else outs[output]
        # parts of the package compute in float32: differences of those say nothing
        exact = isinstance(y, np.ndarray) and y.dtype == np.float64 and y.shape == weight.shape
        return float((y * weight).sum()) if exact else None

    values = {s: value(s * STEP) for s in (-10, -1, 0, 1, 10)}
    if any(v is None for v in values.values()):
        return "there is no oracle in float64"
    if not np.isfinite(list(values.values())).all():
        return "outside of the operator's domain"
    slope = (values[1] - values[-1]) / (2 * STEP)
    others = (values[0] - values[-1]) / STEP, (values[10] - values[-10]) / (20 * STEP)
    if any(abs(s - slope) > 1e-2 * max(1.0, abs(slope)) for s in others):
        return "no derivative at this point"
    return float(slope)


def _trained_by(
    case: Case, backend: str, inputs: Any, names: list[str], output: str, weight: Any
) -> Network:
    """The test's model without inputs: those of float32 are parameters, the others constants. Its
    loss is a weighted sum of the output."""
    g, version = case.model.graph, case.model.opsets[""]
    product, total = (operators.operator_class(n, version) for n in ("Mul", "ReduceSum"))
    nodes = [
        product(output, "gradient/weight", outputs="gradient/product"),
        total("gradient/product", outputs="gradient/loss", keepdims=0),
    ]
    graph = Graph(
        g.name,
        [*g.nodes, *nodes],
        [v for v in g.inputs if v.name not in inputs],
        list(g.outputs),
        {**g.initializers, **inputs, "gradient/weight": weight},
    )
    model: Model = replace(case.model, graph=graph)
    net: Network = network_class(backend)(model, backend.partition(":")[2], names)
    net.add_loss("gradient/loss", kind="value")
    return net
