# SPDX-License-Identifier: Apache-2.0
"""The official ONNX backend tests, run on the importer: python -m nnl.converters.onnx.report.

Writes docs/onnx_report.md: counts by kind, every failure with its reason, the table of operators.
Nothing is skipped; what cannot run is a failure.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nnl.core.ops import random
from nnl.core.parameters.atomic import replacing

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
TRAINING = ("adagrad", "adam", "momentum", "gradient")
COMMON = (1, 6, 7, 9)  # element types float, int32, int64 and bool


@dataclass
class Case:
    """One official test: a model, and inputs with the outputs that it must give."""

    name: str
    kind: str
    model: Any
    data: list[tuple[list[Any], list[Any]]]
    rtol: float
    atol: float

    @property
    def expanded(self) -> bool:
        """Whether the operator was replaced by the nodes of its function."""
        return "_expanded" in self.name

    @property
    def common(self) -> bool:
        """Whether inputs and outputs are float32, int32, int64 or bool."""
        values = (*self.model.graph.input, *self.model.graph.output)
        return all(t in COMMON for v in values for t in _types(v.type))


def _types(t: Any) -> Iterator[int]:
    kind = t.WhichOneof("value")
    if kind == "tensor_type":
        yield t.tensor_type.elem_type
    elif kind in ("sequence_type", "optional_type"):
        yield from _types(getattr(t, kind).elem_type)
    else:
        yield -1


def cases(kind: str) -> Iterator[Case]:
    """The tests of one kind that the installed onnx package has."""
    import onnx
    from onnx.backend.test import loader

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases divide by zero on purpose
        np.random.seed(0)  # some draw what they expect
        found = loader.load_model_tests(kind=kind)
    for test in sorted(found, key=lambda t: t.name):
        if test.url is not None:
            folder = Path(onnx.__file__).parent.parent
            model = randomised(onnx.load(folder / test.url), test.name)
            data = [onnxruntime_data(model)]
        elif test.model_dir is not None:
            folder = Path(test.model_dir)
            model = onnx.load(folder / "model.onnx")
            data = [_stored(model, d) for d in sorted(folder.glob("test_data_set_*"))]
        else:
            model = test.model
            data = [(list(map(_value, a)), list(map(_value, b))) for a, b in test.data_sets]
        yield Case(test.name, kind, model, data, test.rtol, test.atol)


def _value(x: Any) -> Any:
    from onnx import TensorProto, numpy_helper

    return numpy_helper.to_array(x) if isinstance(x, TensorProto) else x


def _stored(model: Any, folder: Path) -> tuple[list[Any], list[Any]]:
    out = []
    for prefix, infos in (("input", model.graph.input), ("output", model.graph.output)):
        files = sorted(folder.glob(f"{prefix}_*.pb"), key=lambda f: int(f.stem.split("_")[1]))
        out.append([_read(f, i.type) for f, i in zip(files, infos, strict=False)])
    return out[0], out[1]


def _read(file: Path, t: Any) -> Any:
    from onnx import OptionalProto, SequenceProto, TensorProto, numpy_helper

    data = file.read_bytes()
    if t.HasField("sequence_type"):
        return numpy_helper.to_list(SequenceProto.FromString(data))
    if t.HasField("optional_type"):
        return numpy_helper.to_optional(OptionalProto.FromString(data))
    return numpy_helper.to_array(TensorProto.FromString(data))


def randomised(model: Any, name: str) -> Any:
    """A light model, whose weights are constant, with random ones that keep activations in range.

    The light models hold ConstantOfShape nodes in the place of weights.
    """
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(sum(name.encode()))
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    positive = {n.input[4] for n in model.graph.node if n.op_type == "BatchNormalization"}
    weights, fillers = [], set()
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape":
            continue
        shape = tuple(stored[node.input[0]])
        fan = int(np.prod(shape[1:])) if len(shape) > 1 else 0
        target = node.output[0]
        if fan:
            value = rng.normal(0, np.sqrt(2.0 / fan), shape)
        elif target in positive:
            value = rng.uniform(0.5, 1.5, shape)
        else:
            value = rng.uniform(-0.5, 0.5, shape) + (1.0 if _is_scale(model, target) else 0.0)
        weights.append(numpy_helper.from_array(value.astype(np.float32), target))
        fillers.add(target)
    keep = [n for n in model.graph.node if not (set(n.output) & fillers)]
    del model.graph.node[:]
    model.graph.node.extend(keep)
    model.graph.initializer.extend(weights)
    model.ir_version = max(model.ir_version, 4)  # initializers that are not inputs
    return helper.make_model(
        model.graph, opset_imports=model.opset_import, ir_version=model.ir_version
    )


def _is_scale(model: Any, name: str) -> bool:
    return any(n.op_type == "BatchNormalization" and n.input[1] == name for n in model.graph.node)


def onnxruntime_data(model: Any) -> tuple[list[Any], list[Any]]:
    """Random inputs, and what ONNX Runtime makes of them.

    Raises:
        ModuleNotFoundError: onnxruntime is not installed.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    rng = np.random.default_rng(0)
    feeds = {i.name: rng.normal(size=i.shape).astype(np.float32) for i in session.get_inputs()}
    return list(feeds.values()), session.run(None, feeds)


def run(case: Case) -> str | None:
    """Run one test: None if it passes, else the reason."""
    from nnl.converters.onnx import load
    from nnl.core.parameters.parameter import parameter_scope

    scope: Any = {}
    try:
        with parameter_scope("", scope), np.errstate(all="ignore"):
            net = load(case.model.SerializeToString())
            for inputs, wanted in case.data:
                outputs = net.run(*inputs)
                if len(outputs) != len(wanted):
                    return f"{len(outputs)} outputs, wanted {len(wanted)}"
                for i, (y, w) in enumerate(zip(outputs, wanted, strict=True)):
                    reason = difference(y, w, case.rtol, case.atol)
                    if reason:
                        return f"output {i}: {reason}"
    except (ValueError, ArithmeticError, LookupError, TypeError, AttributeError, MemoryError) as e:
        return f"{type(e).__name__}: {e}"
    return None


def difference(y: Any, wanted: Any, rtol: float, atol: float) -> str | None:
    """How two values differ; None if they agree in type, shape and value."""
    if isinstance(wanted, (list, tuple)):
        if not isinstance(y, list) or len(y) != len(wanted):
            return f"{type(y).__name__}, wanted a sequence of {len(wanted)}"
        found = (difference(a, b, rtol, atol) for a, b in zip(y, wanted, strict=True))
        return next((f for f in found if f), None)
    if wanted is None:
        return None if y is None else "a value, wanted none"
    wanted = np.asarray(wanted)
    text = wanted.dtype.kind in "OUS"
    if not isinstance(y, np.ndarray) or y.shape != wanted.shape:
        return f"shape {np.shape(y)}, wanted {wanted.shape}"
    if (y.dtype.kind in "OUS") != text or (not text and y.dtype != wanted.dtype):
        return f"type {y.dtype}, wanted {wanted.dtype}"
    if text:
        return None if (y.astype(str) == wanted.astype(str)).all() else "other strings"
    a, b = (v.astype(v.dtype if v.dtype.kind in "biufc" else np.float32) for v in (y, wanted))
    close = np.isclose(a, b, rtol, atol, equal_nan=True)
    if close.all():
        return None
    with np.errstate(all="ignore"):
        worst = np.nanmax(np.abs(a.astype(np.float64) - b.astype(np.float64)))
    return f"{(~close).sum()} of {close.size} numbers differ, by up to {worst:.3g}"


def main(arguments: list[str] | None = None) -> int:
    """Run everything and write the page."""
    parser = argparse.ArgumentParser(prog="python -m nnl.converters.onnx.report")
    parser.add_argument("-o", "--output", default="docs/onnx_report.md", help="the page to write")
    options = parser.parse_args(arguments)
    from tqdm import tqdm

    random.seed(0)
    groups: dict[str, list[tuple[str, str | None]]] = {}
    for kind in KINDS:
        for case in tqdm(list(cases(kind)), desc=kind, disable=None):
            result = case.name, run(case)
            groups.setdefault(kind, []).append(result)
            named = any(w in case.name for w in TRAINING)
            if named and kind in ("node", "simple") and not case.expanded:
                groups.setdefault("training operators", []).append(result)
            if kind == "node" and case.common:
                groups.setdefault("node, common types", []).append(result)
                if not case.expanded:
                    groups.setdefault("node, common types, not expanded", []).append(result)
    with replacing(options.output) as path:
        path.write_text(page(groups), encoding="utf-8")
    for name, results in groups.items():
        print(f"{name}: {_passed(results)} of {len(results)}")
    return 0


def _passed(results: list[tuple[str, str | None]]) -> int:
    return sum(reason is None for _, reason in results)


def page(groups: dict[str, list[tuple[str, str | None]]]) -> str:
    """The report as Markdown."""
    import onnx

    from nnl.converters.onnx.running.families import support_table

    lines = [
        "# ONNX report",
        "",
        f"Made by `make onnx-report` with onnx {onnx.__version__}. The importer runs the official "
        "backend tests in eager mode; nothing is skipped, and what cannot run counts as failed. "
        "The light models have random weights and are compared with ONNX Runtime. Common types "
        "are float32, int32, int64 and bool.",
        "",
        "| tests | passed | of |",
        "|---|---|---|",
    ]
    lines += [f"| {name} | {_passed(r)} | {len(r)} |" for name, r in groups.items()]
    lines += ["", "## Failures", ""]
    for kind in KINDS:
        for name, reason in groups.get(kind, []):
            if reason is not None:
                text = " ".join(reason.split()).replace("|", "\\|")
                lines.append(f"- `{name}` ({kind}): {text[:300]}")
    lines += ["", "## Operators", "", "| domain | operator | import | one to one with |"]
    lines.append("|---|---|---|---|")
    lines += [f"| {' | '.join(row)} |" for row in support_table()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
