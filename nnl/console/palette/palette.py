# SPDX-License-Identifier: Apache-2.0
"""The palette: what layers there are, read off nnl's functions and parametric functions."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.console.palette.formulas import plain
from nnl.core.ops.arguments import REQUIRED
from nnl.core.ops.op import Op
from nnl.core.ops.schema import category

INPUT_OUTPUT = "Input and output"
CATEGORIES = (
    INPUT_OUTPUT,
    "Layer",
    "Activation",
    "Normalization",
    "Loss",
    "Arithmetic",
    "Array manipulation",
    "Reduction",
    "Random",
    "Math",
    "Logical",
    "Geometry",
    "Signal processing",
    "Quantization",
    "Validation",
    "Special",
)
LOSSES = frozenset(
    """absolute_error binary_cross_entropy categorical_cross_entropy epsilon_insensitive_loss
    huber_loss kl_multinomial sigmoid_cross_entropy softmax_cross_entropy squared_error""".split()
)
# Functions that only other functions call, that compute nothing, or that want other objects.
_NOT_LAYERS = frozenset(
    """assign bc_add2 bool_scatter dot fixed_point_quantize get_parameter_or_create
    max_pooling_backward min_max_quantize module_getattr parameter_scope quantize_linear reduce
    shape sink sync_batch_normalization top_k_grad transformer transformer_decode
    transformer_encode unlink""".split()
)
# Arguments of Python that a document has no place for.
_LEFT_OUT = re.compile(r"name|rng|comm|n_outputs|outputs|out|apply_\w|\w*_init|initializer|dtype")
# What the structure search may vary.
_SEARCHED = frozenset("outmaps n_outmaps kernel p shape output_size".split())
_NEEDED = frozenset("shape reps num num_heads num_groups num_classes r".split())
_ARRAYS = frozenset("bias beta gamma z".split())
_INTS = frozenset("axis axes shape start stop step reps batch_axis output_size".split())
_CHOICES = {
    "nonlinearity": ("tanh", "relu"),
    "mode": ("linear", "nearest"),
    "padding_mode": ("zeros", "repeat", "reflect"),
    "round_mode": ("HALF_AWAY_FROM_ZERO", "HALF_TO_EVEN"),
}
# Sensible first values of what has no default.
_INITIAL: dict[str, dict[str, Any]] = {
    "PF.affine": {"n_outmaps": 100},
    "PF.embed": {"n_inputs": 1000, "n_features": 64},
    "PF.group_normalization": {"num_groups": 1},
    "PF.lstm_cell": {"state_size": 64},
    "PF.depthwise_convolution": {"kernel": [3, 3], "pad": [1, 1]},
    "PF.depthwise_deconvolution": {"kernel": [3, 3], "pad": [1, 1]},
    "F.average_pooling": {"kernel": [2, 2]},
    "F.max_pooling": {"kernel": [2, 2]},
    "F.sum_pooling": {"kernel": [2, 2]},
    "F.unpooling": {"kernel": [2, 2]},
    "F.reshape": {"shape": [1, -1]},
    "F.transpose": {"axes": [0, 2, 3, 1]},
    "F.one_hot": {"shape": [10]},
    "F.interpolate": {"output_size": [32, 32]},
    "F.pad": {"pad_width": [0, 0, 1, 1, 1, 1]},
}
_FIRST = {"outmaps": 16, "n_outmaps": 100, "kernel": [3, 3], "r": 8, "val": 1.0, "num_heads": 1}


@dataclass(frozen=True)
class Property:
    """A property of a layer; `optional` ones may be null, which leaves the value to nnl."""

    name: str
    kind: str
    required: bool = False
    default: Any = None
    optional: bool = False
    doc: str = ""
    choices: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "required": self.required,
            "default": list(self.default) if isinstance(self.default, tuple) else self.default,
            "optional": self.optional,
            "search": self.name in _SEARCHED,
            "doc": self.doc,
            "choices": list(self.choices) if self.choices else None,
        }


@dataclass(frozen=True)
class Port:
    """An input or an output; a variadic one stands for several."""

    name: str
    optional: bool = False
    variadic: bool = False


@dataclass(frozen=True)
class Layer:
    """What a node can be. `call` takes Variables and properties by name."""

    type: str
    category: str
    doc: str
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = (Port("y"),)
    properties: tuple[Property, ...] = ()
    parameters: tuple[str, ...] = ()
    call: Callable[..., Any] | None = None
    loss: bool = False
    by_name: dict[str, Property] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.by_name.update((p.name, p) for p in self.properties)

    @property
    def function(self) -> str:
        """Its name without F. or PF."""
        return self.type.rpartition(".")[2]

    def initial(self) -> dict[str, Any]:
        """What a new node has as properties."""
        found = dict(_INITIAL.get(self.type, {}))
        for p in self.properties:
            if p.required and p.name not in found:
                found[p.name] = _FIRST.get(p.name, [1] if p.kind in ("ints", "floats") else 1)
        return found

    def to_json(self) -> dict[str, Any]:
        # Beside a layer that makes its parameters: the function that is given them.
        given = self.type.startswith("F.") and f"PF.{self.function}" in layers()
        return {
            "type": self.type,
            "title": title(self.function) + " (F)" * given,
            "category": self.category,
            "doc": self.doc,
            "inputs": [vars(p) for p in self.inputs],
            "outputs": [{"name": p.name, "variadic": p.variadic} for p in self.outputs],
            "properties": [p.to_json() for p in self.properties],
            "parameters": list(self.parameters),
            "loss": self.loss,
            "initial": self.initial(),
            "advanced": given,
        }


def title(function: str) -> str:
    """max_pooling -> Max pooling; relu -> ReLU."""
    known = {"relu": "ReLU", "elu": "ELU", "selu": "SELU", "gelu": "GELU", "prelu": "PReLU",
             "relu6": "ReLU6", "crelu": "CReLU", "celu": "CELU", "lstm": "LSTM", "gru": "GRU",
             "rnn": "RNN", "leaky_relu": "Leaky ReLU", "fft": "FFT", "ifft": "IFFT"}  # fmt: skip
    return known.get(function, function.replace("_", " ").capitalize())


def schema() -> dict[str, Any]:
    """The palette as plain data."""
    found = [layer.to_json() for layer in layers().values()]
    rank = {name: i for i, name in enumerate(CATEGORIES)}
    found.sort(key=lambda e: (rank[e["category"]], e["advanced"]))
    return {"version": 1, "categories": list(CATEGORIES), "layers": found}


@cache
def layers() -> dict[str, Layer]:
    """All layers by type."""
    found = {layer.type: layer for layer in _special()}
    for prefix, module in (("PF", PF), ("F", F)):
        for name in sorted(dir(module)):
            value = getattr(module, name)
            if name.startswith("_") or name in _NOT_LAYERS:
                continue
            if isinstance(value, Op):
                layer = _of_op(value, name)
            elif inspect.isfunction(value):
                layer = _of_function(value, f"{prefix}.{name}")
            else:
                continue
            if layer is not None and layer.category in CATEGORIES:
                found[layer.type] = layer
    return found


def _special() -> list[Layer]:
    shape = Property("shape", "ints", optional=True, doc="Without the batch; the data's if empty.")
    initial = ("zeros", "ones", "normal", "uniform")
    return [
        Layer("Input", INPUT_OUTPUT, "A column of the data set.", properties=(shape,)),
        Layer("Output", INPUT_OUTPUT, "What the network gives.", (Port("x"),), properties=()),
        Layer(
            "Parameter",
            INPUT_OUTPUT,
            "An array of its own.",
            properties=(
                Property("shape", "ints", True, doc="Its sizes."),
                Property(
                    "initial", "choice", default="zeros", doc="First values.", choices=initial
                ),
                Property("trained", "bool", default=True, doc="Whether training changes it."),
            ),
        ),
        Layer(
            "Unit",
            INPUT_OUTPUT,
            "Another network of this project.",
            properties=(Property("network", "network", True, doc="Its name."),),
        ),
    ]


def first_sentence(doc: str | None) -> str:
    return plain(" ".join((doc or "").strip().partition("\n\n")[0].split()))


def arguments(doc: str | None) -> dict[str, str]:
    """What a docstring says of each argument."""
    found: dict[str, str] = {}
    names: list[str] = []
    margin = None
    for line in inspect.cleandoc(doc or "").partition("Args:\n")[2].splitlines():
        indent = len(line) - len(line.lstrip())
        if not line.strip() or indent == 0:
            break
        margin = indent if margin is None else margin
        match = re.match(r"([\w, ]+): (.*)", line.strip())
        if indent == margin and match:
            names = [n.strip() for n in match[1].split(",")]
            found.update((n, match[2]) for n in names)
        else:
            found.update((n, f"{found[n]} {line.strip()}") for n in names)
    return {name: plain(text) for name, text in found.items()}


_KINDS = {
    "int": "int",
    "float": "float",
    "bool": "bool",
    "str": "str",
    "Sequence[int]": "ints",
    "int | Sequence[int]": "ints",
    "int | tuple[int, ...]": "ints",
    "Sequence[float]": "floats",
    "tuple[int, ...]": "ints",
    "tuple[float, ...]": "floats",
    "tuple[int, int]": "ints",
    "tuple[float, float]": "floats",
    "Shape": "ints",
}


def property_of(name: str, text: str, default: Any, docs: dict[str, str]) -> Property | None:
    kind = _KINDS.get(text.removesuffix(" | None"))
    if kind is None:
        return None
    choices = _CHOICES.get(name) if kind == "str" else None
    if choices and isinstance(default, str) and default not in choices:
        choices = None
    optional = text.endswith(" | None") or default is None
    required = default is REQUIRED
    doc = docs.get(name, "")
    kind = "choice" if choices else kind
    return Property(name, kind, required, None if required else default, optional, doc, choices)


def _of_op(op: Op, name: str) -> Layer:
    docs = arguments(op.__doc__)
    n = len(op.inputs)
    inputs = [
        Port(x, i in op.optional, op.variadic and i == n - 1)
        for i, x in enumerate(op.inputs)
        if x != "rng"
    ]
    visible = op.outputs[: op.visible]
    outputs = [Port(y, variadic=op.variadic_out) for y in visible]
    given = zip(op.fields, op.kinds, op.defaults, strict=True)
    properties = [property_of(f, kind, d, docs) for f, kind, d in given if f != "inplace"]
    loss = name in LOSSES
    return Layer(
        f"F.{name}",
        "Loss" if loss else category(op),
        first_sentence(op.__doc__),
        tuple(inputs),
        tuple(outputs),
        tuple(p for p in properties if p is not None),
        (),
        op,
        loss,
    )


def _of_function(function: Any, kind: str) -> Layer | None:
    name = kind.rpartition(".")[2]
    signature = inspect.signature(function).parameters
    parametric = kind.startswith("PF.")
    if parametric and "name" not in signature:
        return None  # of the registry
    docs = arguments(function.__doc__)
    inputs, properties = [], []
    for p in signature.values():
        text = "" if p.annotation is p.empty else str(p.annotation)
        optional = p.default is None
        if (
            "Input" in text
            or p.kind is p.VAR_POSITIONAL
            or (
                not text
                and (p.default is p.empty or (optional and p.name in _ARRAYS))
                and p.name not in _NEEDED
            )
        ):
            inputs.append(Port(p.name, optional, p.kind is p.VAR_POSITIONAL))
            continue
        if _LEFT_OUT.fullmatch(p.name):
            continue
        if not text or text == "Any":
            kinds = {bool: "bool", int: "int", float: "float", str: "str"}
            text = kinds.get(type(p.default), "Sequence[int]" if p.name in _INTS else "float")
        default = REQUIRED if p.default is p.empty else p.default
        properties.append(property_of(p.name, text, default, docs))
    if parametric:
        doc = "Parameter scope; layers with the same one share weights."
        properties.append(Property("scope", "str", optional=True, doc=doc))
    described = re.findall(
        r"^    (\w+): .*$", (function.__doc__ or "").partition("Parameters, in")[2], re.M
    )
    return Layer(
        kind,
        _category_of(name, function),
        first_sentence(function.__doc__),
        tuple(inputs),
        (Port("y", variadic=name in ("split", "meshgrid")),),
        tuple(p for p in properties if p is not None),
        tuple(described),
        function,
        name in LOSSES,
    )


def _category_of(name: str, function: Any) -> str:
    """That of the function of this name, or of a part of it."""
    if re.search("quantize|binary_|inq_|pruned|pow2", name):
        return "Quantization"
    same = getattr(F, name, None)
    if isinstance(same, Op):
        return category(same)
    module = sys.modules[(same or function).__module__]
    package = sys.modules[module.__name__.rpartition(".")[0]]
    found = getattr(module, "CATEGORY", "") or getattr(package, "CATEGORY", "")
    if found:
        return str(found)
    return "Normalization" if "norm" in name else "Layer"
