# SPDX-License-Identifier: Apache-2.0
"""How a file stores the numbers of each variable: settings, and the type that each edge gets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from nnl.converters.networks.lowering import Lowered
from nnl.converters.networks.model import Key, Network
from nnl.converters.nnb.table import DTYPES
from nnl.converters.nnp.function_messages import visible_inputs, visible_outputs
from nnl.core.graph.node import Node, Value
from nnl.core.parameters.atomic import replacing

WANTED = "FLOAT32, FIXED16, FIXED8, these two with a position as in FIXED16_10, or SIGN"


class Type(NamedTuple):
    """A type of numbers.

    Attributes:
        name: One of TYPES.
        point: Bits after the point of a fixed-point number, which is stored times 2**point; None
            leaves it to the values, which must be known then.
    """

    name: str
    point: int | None = None

    @property
    def is_fixed(self) -> bool:
        return self.name.startswith("FIXED")

    def __str__(self) -> str:
        return self.name if self.point is None else f"{self.name}_{self.point}"


FLOAT = Type("FLOAT32")


def parse(text: Any, where: str) -> Type:
    """The type that a text such as FIXED16_10 names."""
    found = re.fullmatch(r"(FLOAT32|SIGN|FIXED16|FIXED8)(?:_(\d{1,2}))?", str(text))
    name, digits = found.groups() if found else ("", None)
    if not found or (digits and not name.startswith("FIXED")):
        raise ValueError(f"{where}: the type is {text!r}, wanted {WANTED}")
    most = 8 * DTYPES[name].itemsize - 1 if digits else 0
    if digits and int(digits) > most:
        raise ValueError(f"{where}: the type is {text!r}, wanted a position of at most {most}")
    return Type(name, int(digits) if digits else None)


def read_settings(path: str | os.PathLike[str]) -> dict[str, str]:
    """Types of variables by name, of a YAML file with `variables`.

    Raises:
        ValueError: The file is of another form.
        ModuleNotFoundError: PyYAML is not installed.
    """
    yaml = _yaml()
    with open(path, encoding="utf-8") as file:
        try:
            found = yaml.safe_load(file)
        except yaml.YAMLError as error:
            raise ValueError(f"{path} is not YAML: {error}") from None
    if not isinstance(found, dict) or not set(found) <= {"functions", "variables"}:
        raise ValueError(f"{path}: wanted the entries functions and variables")
    functions, variables = found.get("functions") or {}, found.get("variables") or {}
    if not isinstance(functions, dict) or not isinstance(variables, dict):
        raise ValueError(f"{path}: functions and variables must have names")
    for name, function in functions.items():
        if function != {"implement": 0}:
            raise ValueError(f"{path}: function {name}: {function}, wanted only implement: 0")
    return {str(name): str(text) for name, text in variables.items()}


def write_settings(path: str | os.PathLike[str], types: Mapping[str, str]) -> None:
    """The file that `read_settings` reads."""
    text = _yaml().safe_dump({"variables": dict(types)}, sort_keys=False)
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write(text)


def _yaml() -> Any:
    try:
        import yaml
    except ModuleNotFoundError:
        raise ModuleNotFoundError("settings of NNB need PyYAML: pip install nnl[nnb]") from None
    return yaml


def numbers(raw: bytes, kind: Type) -> np.ndarray[Any, Any]:
    """What `stored` has made of numbers."""
    found = np.frombuffer(raw, DTYPES[kind.name])
    return found if not kind.is_fixed else found * np.float32(2.0 ** -(kind.point or 0))


class Types:
    """The types of a network's edges.

    An edge has the type that its name has in the settings. Without one, edges that the network
    names have the default; what a function computes on the way to another has the type of that
    one's result; and a constant that of the result of the function that reads it.

    Args:
        settings: Types by names of edges.
        default: For what the settings leave out.
    Raises:
        ValueError: The settings have a name that there is not, or a type that does not fit.
    """

    def __init__(
        self, network: Network, lowered: Lowered, settings: Mapping[str, str], default: str
    ) -> None:
        theirs = network.every_name()
        self.names = names_of(theirs, lowered)
        unknown = set(settings) - set(self.names.values()) - set(theirs.values())
        if unknown:
            names = ", ".join(map(repr, sorted(unknown)))
            raise ValueError(f"NNB: the network has no variables {names}")
        self.given = {name: parse(text, f"NNB: {name}") for name, text in settings.items()}
        self.default = parse(default, "NNB: the default")
        self.users = set(theirs.values())
        self.computed: dict[Key, Type] = {}
        asked: dict[Key, Type] = {}  # by the function that reads it
        for node in reversed(lowered.nodes):
            for v in outputs(node):
                self.computed[v.key] = self._of(v, asked.get(v.key, self.default))
            for v in visible_inputs(node):
                asked[v.key] = self.computed[id(node), 0]
        for v in lowered.inputs.values():
            self.computed[v.key] = self._of(v, self.default)

    def _of(self, v: Value, asked: Type) -> Type:
        name = self.names[v.key]
        kind = self.given.get(name, self.default if name in self.users else asked)
        if kind.name == "SIGN":
            raise ValueError(f"NNB: {name} is SIGN, which is for weights of binary functions")
        if kind.is_fixed and kind.point is None:
            raise ValueError(
                f"NNB: {name} is {kind}, but what is computed needs a position: {kind}_N has N "
                "bits after the point"
            )
        return kind

    def of(self, v: Value, node: Node) -> Type:
        """The type of an input of a function."""
        if v.key in self.computed:
            return self.computed[v.key]
        result = self.computed[id(node), 0]
        kind = self.given.get(self.names[v.key], Type(result.name))
        if not kind.is_fixed or kind.point is not None:
            return kind
        if _is_bias(v, node):
            return result  # the runtime shifts it in its memory, run after run, if it is another
        return Type(kind.name, _point(v.array.read("host"), kind, self.names[v.key]))


def _is_bias(v: Value, node: Node) -> bool:
    return any(name == "bias" and u is v for name, u in zip(node.op.inputs, node.inputs))  # noqa: B905


def _point(values: np.ndarray[Any, Any], kind: Type, name: str) -> int:
    """The most bits after the point with which all values fit."""
    limits = np.iinfo(DTYPES[kind.name])
    low, high = float(values.min(initial=0)), float(values.max(initial=0))
    for point in range(limits.bits - 1, -1, -1):
        if limits.min <= np.rint(low * 2**point) and np.rint(high * 2**point) <= limits.max:
            return point
    raise ValueError(f"NNB: {name} has values from {low:.6g} to {high:.6g}, too large for {kind}")


def size_of(kind: Type) -> int:
    """Bytes of a number."""
    return DTYPES[kind.name].itemsize


def stored(values: np.ndarray[Any, Any], kind: Type) -> bytes:
    """Numbers as a file has them."""
    if kind.name == "SIGN":
        return np.packbits(values.reshape(-1) > 0, bitorder="little").tobytes()
    if kind.is_fixed:
        limits = np.iinfo(DTYPES[kind.name])
        values = np.clip(np.rint(values * 2.0 ** (kind.point or 0)), limits.min, limits.max)
    return np.ascontiguousarray(values, DTYPES[kind.name]).tobytes()


def outputs(node: Node) -> Iterator[Value]:
    """Edges that a function makes."""
    for i, spec in enumerate(node.out_specs[: visible_outputs(node)]):
        yield Value.of(node, i, spec, False, node.outs[i])  # type: ignore[index]


def names_of(theirs: Mapping[Key, str], lowered: Lowered) -> dict[Key, str]:
    """Names of all edges of a lowered network: those of the network, others after functions."""
    ends = (*lowered.outputs.items(), *lowered.inputs.items())
    found: dict[Key, str] = {v.key: name for name, v in ends}
    for key, name in theirs.items():
        edge = lowered.became.get(key)
        if edge is not None:
            found.setdefault(edge.key, name)
    for i, node in enumerate(lowered.nodes):
        for k, v in enumerate(outputs(node)):
            found.setdefault(v.key, f"{node.op.name}_{i}" + (f"_{k}" if k else ""))
        for k, u in enumerate(node.inputs):
            if u is not None:
                slots = node.op.inputs
                slot = slots[k] if k < len(slots) else f"{slots[-1]}{k}"
                found.setdefault(u.key, f"{node.op.name}_{i}_{slot}")
    return found
