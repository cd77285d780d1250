# SPDX-License-Identifier: Apache-2.0
"""Level 0: single operators of a back end - right or wrong, how exact, how fast, and gradients.

A wrong result is a result, and so is a back end that raises: nothing here ends the run.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from nnl.converters.onnx.file.errors import UnsupportedOperator
from nnl.converters.onnx.report import difference
from nnl.deep500 import network_class
from nnl.deep500.cases import Case
from nnl.deep500.contract import Network
from nnl.deep500.timing import beside, first

PASS, WRONG, FAILED, MISSING = "pass", "wrong", "failed", "missing"


@dataclass
class Result:
    """What came of one test on one back end.

    Attributes:
        status: "pass", "wrong" (other numbers), "failed" (it raised), "missing" (no such operator).
        numbers: Measured values by name, None where there is none, and what overhead is over.
    """

    test: str
    operator: str
    backend: str
    status: str
    reason: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """Everything in one flat dictionary, as reports hold it."""
        row = asdict(self)
        return {**{k: v for k, v in row.items() if k != "numbers"}, **self.numbers}


def opened(case: Case, backend: str) -> Network:
    """The network of a test."""
    made: Network = network_class(backend)(case.model, backend.partition(":")[2], ())
    return made


def attempt(case: Case, backend: str, measure: Any) -> Result:
    """measure(case, backend) -> (status, reason, numbers), whatever happens in it."""
    result = Result(case.name, case.operator, backend, FAILED)
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result.status, result.reason, result.numbers = measure(case, backend)
    except UnsupportedOperator as error:
        result.status, result.reason = MISSING, str(error)
    except Exception as error:  # back ends raise what they like, and all of it is a result
        result.reason = f"{type(error).__name__}: {error}"
    result.reason = " ".join(result.reason.split())[:300]
    return result


# ---- right or wrong ----


def check(tests: Iterable[Case], backend: str) -> Iterator[Result]:
    """Pass or fail of every test."""
    return (attempt(case, backend, _check) for case in tests)


def _check(case: Case, backend: str) -> tuple[str, str, dict[str, Any]]:
    with opened(case, backend) as net:
        for inputs, expected in case.data:
            outs = net.inference(inputs)
            for name, wanted in expected.items():
                reason = difference(outs[name], wanted, case.rtol, case.atol)
                if reason:
                    return WRONG, f"output {name!r}: {reason}", {}
    return PASS, "", {}


# ---- how exact ----


def accuracy(tests: Iterable[Case], backend: str) -> Iterator[Result]:
    """Differences of floating-point outputs.

    max_error, mean_error: absolute, from what the test expects. max_ulp: from ONNX's own evaluation
    in float64, in units of the last place of the result's type.
    """
    return (attempt(case, backend, _accuracy) for case in tests)


def _accuracy(case: Case, backend: str) -> tuple[str, str, dict[str, Any]]:
    inputs, expected = case.data[0]
    with opened(case, backend) as net:
        outs = net.inference(inputs)
    status, reason = PASS, ""
    errors, ulps = [], []
    exact = evaluated(case, inputs)
    for name, wanted in expected.items():
        y = outs[name]
        wrong = difference(y, wanted, case.rtol, case.atol)
        if wrong:
            status, reason = WRONG, f"output {name!r}: {wrong}"
        if not _is_float(wanted) or np.shape(y) != np.shape(wanted):
            continue
        both = np.isfinite(y) & np.isfinite(wanted)
        errors.append(np.abs(y.astype(np.float64) - wanted)[both].ravel())
        if exact is not None and np.shape(exact[name]) == y.shape:
            truth = np.asarray(exact[name], np.float64)
            unit = np.spacing(np.abs(truth).astype(y.dtype)).astype(np.float64)
            seen = both & np.isfinite(truth)
            ulps.append((np.abs(y - truth) / unit)[seen].ravel())
    return status, reason, {**_largest("error", errors), **_largest("ulp", ulps)}


def _is_float(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype in (np.float16, np.float32, np.float64)


def _largest(what: str, parts: list[Any]) -> dict[str, float | None]:
    flat = np.concatenate(parts) if parts else np.zeros(0)
    if not flat.size:
        return {f"max_{what}": None, f"mean_{what}": None}
    return {f"max_{what}": float(flat.max()), f"mean_{what}": float(flat.mean())}


def evaluated(case: Case, inputs: dict[str, Any]) -> dict[str, Any] | None:
    """The outputs by the onnx package's own numpy, in float64; None where that cannot say."""
    from onnx.reference import ReferenceEvaluator

    wide = {n: v.astype(np.float64) if _is_float(v) else v for n, v in inputs.items()}
    try:
        outs = ReferenceEvaluator(case.source).run(None, wide)
    except Exception:  # it lacks operators, and types of others: then there is no oracle
        return None
    names = [v.name for v in case.model.graph.outputs]
    return dict(zip(names, outs, strict=True))  # type: ignore[arg-type]


# ---- how fast ----


def timing(tests: Iterable[Case], backend: str, runs: int = 21) -> Iterator[Result]:
    """Seconds per call: first (with everything that happens once), median, and its 95 % interval;
    and how much of it the layer above the back end is.

    bytes are those of inputs and outputs, flops those of the operator, for a roofline.
    """

    def measure(case: Case, name: str) -> tuple[str, str, dict[str, Any]]:
        inputs, _ = case.data[0]
        with opened(case, name) as net:
            once, outs = first(lambda: net.inference(inputs))
            without, baseline = plain(net, inputs)
            seconds = beside(without, lambda: net.inference(inputs), runs)
        moved = sum(v.nbytes for v in (*inputs.values(), *outs.values()) if hasattr(v, "nbytes"))
        sizes = {"bytes": moved, "flops": flops(case, inputs, outs)}
        return PASS, "", {"first_s": once, **seconds, "baseline": baseline, **sizes}

    return (attempt(case, backend, measure) for case in tests)


def plain(net: Network, inputs: Any, train: bool = False) -> tuple[Any, str]:
    """The same without the layer, once run, and what that is.

    "plain program": of the back end alone. Where it has none, "own call": what the back end does
    with inputs that are checked already, so that its visitor is in both.
    """
    net.setup()
    try:
        call = partial(net.plain_training(""), inputs) if train else net.plain_inference(inputs)
        call()
    except Exception:  # it has none, or cannot export this graph: it raises what it likes
        values, run = net._bound(inputs), net._backprop if train else net._infer
        return lambda: run(values), "own call"
    return call, "plain program"


def flops(case: Case, inputs: dict[str, Any], outs: dict[str, Any]) -> int | None:
    """Floating-point operations of a test of one node: twice the multiply-adds of products, one
    for every output element of anything else; None for several nodes."""
    if not case.operator:
        return None
    node = case.model.graph.nodes[0]
    results = [y for y in outs.values() if isinstance(y, np.ndarray)]
    size = sum(int(y.size) for y in results)
    given = [inputs.get(n) for n in node.inputs]
    shapes = [v.shape if isinstance(v, np.ndarray) else () for v in given]
    if node.op_type == "Conv":
        return 2 * size * math.prod(shapes[1][1:])
    if node.op_type == "ConvTranspose":
        return 2 * math.prod(shapes[0]) * math.prod(shapes[1][1:])
    if node.op_type == "MatMul":
        return 2 * size * shapes[0][-1]
    if node.op_type == "Gemm":
        return 2 * size * shapes[0][0 if node.attributes.get("transA") else 1]
    return size


# ---- summaries ----


def coverage(results: Iterable[Result]) -> dict[str, dict[str, tuple[int, int]]]:
    """{operator: {back end: (tests passed, tests)}} of tests of one node."""
    table: dict[str, dict[str, tuple[int, int]]] = {}
    for r in results:
        if r.operator:
            row = table.setdefault(r.operator, {})
            passed, of = row.get(r.backend, (0, 0))
            row[r.backend] = passed + (r.status == PASS), of + 1
    return dict(sorted(table.items()))


def coverage_page(results: Sequence[Result], versions: str) -> str:
    """The coverage as a page of Markdown: which operators each back end runs and passes."""
    table = coverage(results)
    backends = sorted({r.backend for r in results})
    lines = [
        "# Operators of the back ends",
        "",
        f"Made by `nnl bench op --table` with {versions}. Of each operator's official tests of "
        "one node, how many pass; nothing is skipped, and what cannot run has not passed.",
        "",
        "| operator | " + " | ".join(backends) + " |",
        "|---|" + "---|" * len(backends),
    ]
    for operator, row in table.items():
        cells = [f"{row[b][0]} of {row[b][1]}" if b in row else "" for b in backends]
        lines.append(f"| {operator} | " + " | ".join(cells) + " |")
    run = {b: sum(1 for row in table.values() if row.get(b, (0, 0))[0]) for b in backends}
    lines.append(
        "| operators that pass a test | " + " | ".join(str(run[b]) for b in backends) + " |"
    )
    passed = {b: sum(r.status == PASS for r in results if r.backend == b) for b in backends}
    lines.append("| tests passed, all | " + " | ".join(str(passed[b]) for b in backends) + " |")
    return "\n".join(lines) + "\n"
