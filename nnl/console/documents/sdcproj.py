# SPDX-License-Identifier: Apache-2.0
"""Projects of Neural Network Console (.sdcproj) as documents.

Its layers speak without the batch axis: axis 0 is the first one after it.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nnl.console.documents.analysis import analyse
from nnl.console.documents.document import MAX_NODES, Document, Net, Node
from nnl.console.errors import Refused
from nnl.console.palette.palette import LOSSES, Layer, layers
from nnl.converters.nnp.function_messages import op_of_type

MAX_BYTES = 16 * 2**20
_PARAMETRIC = {
    "Affine": "PF.affine",
    "Convolution": "PF.convolution",
    "Deconvolution": "PF.deconvolution",
    "DepthwiseConvolution": "PF.depthwise_convolution",
    "DepthwiseDeconvolution": "PF.depthwise_deconvolution",
    "BatchNormalization": "PF.batch_normalization",
    "Embed": "PF.embed",
    "PReLU": "PF.prelu",
}
_PROPERTIES = {
    "KernelShape": "kernel",
    "Strides": "stride",
    "Padding": "pad",
    "OutMaps": "outmaps",
    "Epsilon": "eps",
    "Value": "val",
    "NumClass": "n_inputs",
    "Shape": "n_features",
}
_SOLVER = {"LearningRate": "lr", "Epsilon": "eps"}
# What a document has no place for and nothing depends on.
_IGNORED = re.compile(
    r"Name|InPlace|.*\.\w+|BorderMode|ParameterScope|Generator.*|Dataset|AutoName"
)
_AXES = ("axis", "axes", "base_axis")


def read(path: Path) -> tuple[Document, list[tuple[str, str]]]:
    """The document of a project, and what is not as in the project: (severity, text)."""
    if path.stat().st_size > MAX_BYTES:
        raise Refused("too_large", f"{path.name} is larger than {MAX_BYTES >> 20} MiB")
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(path.read_text("utf-8-sig"))
        sections = {name: dict(parser[name]) for name in parser.sections()}
        if "Network_Global" not in sections:
            raise ValueError("it has no section Network_Global")
        reader = _Reader(sections)
    except (configparser.Error, UnicodeDecodeError, ValueError, LookupError) as error:
        text = f"{path.name} is no project: {error}"
        raise Refused("unreadable", text, None, path.name) from None
    return reader.document, reader.report


class _Reader:
    """Turns the sections of a project into a document."""

    def __init__(self, sections: Mapping[str, Mapping[str, str]]) -> None:
        self.sections = sections
        self.document = Document({"main": Net("main")})
        self.net = self.document.main
        self.report: list[tuple[str, str]] = []
        self.nodes: dict[str, Node] = {}
        self.labels: list[tuple[Node, str]] = []
        head = sections["Network_Global"]
        numbers = [int(head.get(name, "0")) for name in ("NumLayer", "NumLink")]
        if not all(0 <= n <= 4 * MAX_NODES for n in numbers):
            raise ValueError(f"it has {numbers[0]} layers and {numbers[1]} links")
        for i in range(numbers[0]):
            self._layer(sections[f"Layer_{i}"])
        for i in range(numbers[1]):
            self._link(sections[f"Link_{i}"])
        self._add_labels()
        self._read_config()

    def _layer(self, section: Mapping[str, str]) -> None:
        given = {}
        for i in range(int(section.get("NumProperty", "0"))):
            name = section.get(f"Property_{i}_Name")
            if name is not None:
                given[name] = section.get(f"Property_{i}_Value", "")
        kind = section["Type"]
        name = self.net.unused_name((given.get("Name") or kind)[:300])
        if kind == "Input":
            column = given.get("Dataset") or name
            shape = _numbers(given.get("Size", ""))
            node = self.net.add("Input", self.net.unused_name(column), {"shape": shape})
        else:
            node = self._function(kind, name, given)
        node.x = float(section.get("Position_0", "0"))
        node.y = float(section.get("Position_1", "0")) * 1.6
        self.nodes[section["ID"]] = node

    def _function(self, kind: str, name: str, given: Mapping[str, str]) -> Node:
        op = op_of_type().get(kind)
        wanted = _PARAMETRIC.get(kind) or (f"F.{op.name}" if op is not None else "")
        layer = layers().get(wanted)
        if layer is None:
            self.report.append(("warning", f"{name}: the layer {kind} is unknown here"))
            return self.net.add("Unknown", name, {"function": kind, "properties": dict(given)})
        properties: dict[str, Any] = {}
        for key, text in given.items():
            if text and not text.startswith("*") and not _IGNORED.fullmatch(key):
                self._property(layer, name, key, text, properties)
        self._border(layer, given, properties)
        scope = given.get("ParameterScope", "")
        if layer.type.startswith("PF.") and scope and not scope.startswith("*"):
            properties["scope"] = scope
        node = self.net.add(layer.type, name, properties)
        label = given.get("T.Dataset")
        if layer.loss and len(layer.inputs) > 1 and label:
            self.labels.append((node, label))
        return node

    def _property(
        self, layer: Layer, name: str, key: str, text: str, found: dict[str, Any]
    ) -> None:
        wanted = _PROPERTIES.get(key) or re.sub(r"(?<!^)(?=[A-Z])", "_", key).lower()
        if key == "OutShape":
            wanted = "n_outmaps" if layer.function == "affine" else "shape"
        known = layer.by_name.get(wanted)
        if known is None:
            self.report.append(("warning", f"{name}: {key} = {text[:60]} is left out"))
            return
        value = _value(known.kind, text)
        if value is None:
            self.report.append(("warning", f"{name}: {key} is {text[:60]!r}, which is not known"))
            return
        if wanted in _AXES:
            shifted = [v + 1 if v >= 0 else v for v in (value if known.kind == "ints" else [value])]
            value = shifted if known.kind == "ints" else shifted[0]
        if layer.type == "F.reshape" and wanted == "shape":
            value = [-1, *value]
        default = list(known.default) if isinstance(known.default, tuple) else known.default
        if value != default:
            found[wanted] = value

    def _border(self, layer: Layer, given: Mapping[str, str], found: dict[str, Any]) -> None:
        """The padding of a convolution that is said as valid, same or full."""
        mode = given.get("BorderMode")
        if not given.get("Padding", "*").startswith("*") or "pad" not in layer.by_name:
            return
        kernel = found.get("kernel")
        if mode not in ("same", "full") or not kernel:
            return
        dilation = found.get("dilation") or [1] * len(kernel)
        spans = [(k - 1) * d for k, d in zip(kernel, dilation, strict=False)]
        found["pad"] = [s // 2 for s in spans] if mode == "same" else spans

    def _link(self, section: Mapping[str, str]) -> None:
        source, target = self.nodes[section["SourceLayerID"]], self.nodes[section["DestLayerID"]]
        layer = layers().get(target.type)
        place = int(section.get("DestPinIndex", "0"))
        taken = {e.name for e in self.net.edges if e.target == target.id}
        ports = [p.name for p in layer.inputs] if layer is not None else []
        several = layer is not None and bool(ports) and layer.inputs[-1].variadic
        if several:
            name = ports[-1]
        else:  # all links go to the first pin, in their order
            free = [p for p in ports[place:] if p not in taken]
            name = free[0] if free else f"x{len(taken)}"
        self.net.connect(source, target, name, int(section.get("SourcePinIndex", "0")))

    def _add_labels(self) -> None:
        """Inputs for what losses compare with."""
        made: dict[str, Node] = {n.name: n for n in self.net.nodes.values() if n.type == "Input"}
        result = analyse(self.document)["networks"]["main"]["nodes"]
        for loss, column in self.labels:
            layer = layers()[loss.type]
            if column not in made:
                x = next((e for e in self.net.edges if e.target == loss.id), None)
                outputs = result[x.source]["outputs"] if x is not None else []
                shape = outputs[x.out]["shape"][1:] if x is not None and outputs else [1]
                classes = layer.function in LOSSES and "cross_entropy" in layer.function
                if classes and layer.function.startswith(("softmax", "categorical")):
                    shape = [1]
                node = self.net.add("Input", self.net.unused_name(column), {"shape": shape})
                node.x, node.y = loss.x + 260, loss.y - 80
                made[column] = node
            self.net.connect(made[column], loss, layer.inputs[1].name)

    def _read_config(self) -> None:
        given, config = self.sections.get("Config", {}), self.document.config
        for name, key in (("MaxEpoch", "max_epoch"), ("BatchSize", "batch_size")):
            if given.get(name, "").isdecimal():
                config[key] = max(int(given[name]), 1)
        config["save_best"] = given.get("SaveBest", "1") != "0"
        solver = self.sections.get("Optimizer_0")
        if solver is None:
            return
        properties = {}
        for i in range(min(int(solver.get("SolverParameterNum", "0")), 20)):
            name = solver.get(f"SolverParameterName_{i}", "")
            value = _value("float", solver.get(f"SolverParameter_{i}", ""))
            if name and value is not None:
                properties[_SOLVER.get(name) or name.lower()] = value
        schedule: dict[str, Any] = {"type": "none"}
        kind = solver.get("LearningRateScheduler", "")
        factor = _value("float", solver.get("LearningRateMultiplier", "1"))
        if kind in ("Cosine", "Polynomial"):
            schedule = {"type": {"Cosine": "cosine", "Polynomial": "poly"}[kind]}
        elif factor not in (None, 1.0):
            schedule = {"type": "exponential", "gamma": factor}
        config["optimizer"] = {
            "type": solver.get("SolverName", "Adam"),
            "properties": properties,
            "weight_decay": _value("float", solver.get("WeightDecay", "0")) or 0.0,
            "schedule": schedule,
        }


def _numbers(text: str) -> list[int] | None:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        return None


def _value(kind: str, text: str) -> Any:
    """The value of a property; None where it is no plain one, as an expression."""
    text = text.strip()
    try:
        if kind == "ints":
            return _numbers(text)
        if kind == "floats":
            return [float(part) for part in text.split(",")]
        if kind in ("int", "float"):
            return int(text) if kind == "int" else float(text)
    except ValueError:
        return None
    if kind == "bool":
        return text.lower() in ("true", "1")
    return text
