# SPDX-License-Identifier: Apache-2.0
"""One class per ONNX operator, made when this module is imported from the schemas of `onnx`.

    node = operators.Conv("x", "w", outputs="y", kernel_shape=(3, 3))
    node.kernel_shape, node.group            # (3, 3), 1: attributes are typed members
    node.i_X, node.o_Y                       # "x", "y": names of its values
    help(operators.Conv)                     # ONNX's documentation

Newest versions are members of the module; `operator_class` gives any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx import defs

from nnl.converters.onnx.file.errors import OnnxError, UnsupportedOperator

_KIND = defs.OpSchema.AttrType
PYTHON_TYPES = {
    _KIND.INT: "int",
    _KIND.FLOAT: "float",
    _KIND.STRING: "str",
    _KIND.TENSOR: "numpy.ndarray",
    _KIND.GRAPH: "Graph",
    _KIND.SPARSE_TENSOR: "numpy.ndarray",
    _KIND.TYPE_PROTO: "ValueInfo",
    _KIND.INTS: "tuple[int, ...]",
    _KIND.FLOATS: "tuple[float, ...]",
    _KIND.STRINGS: "tuple[str, ...]",
    _KIND.TENSORS: "tuple[numpy.ndarray, ...]",
    _KIND.GRAPHS: "tuple[Graph, ...]",
    _KIND.SPARSE_TENSORS: "tuple[numpy.ndarray, ...]",
    _KIND.TYPE_PROTOS: "tuple[ValueInfo, ...]",
}
_CONVERT = {
    _KIND.INT: int,
    _KIND.FLOAT: float,
    _KIND.STRING: str,
    _KIND.INTS: lambda v: tuple(int(i) for i in v),
    _KIND.FLOATS: lambda v: tuple(float(i) for i in v),
    _KIND.STRINGS: lambda v: tuple(str(i) for i in v),
}
_MANY = defs.OpSchema.FormalParameterOption.Variadic


class Node:
    """An operator in a graph: names of its input and output values, and its attributes.

    Attributes:
        op_type, domain, since: The operator, and the version its schema appeared in.
        name: Its own name, which may be empty.
        inputs, outputs: Names of values; "" for one left out.
        attributes: Attributes that the file gives, by name. All, defaults included, are members.
        captured: Names that its subgraphs read from around it.
    """

    schema: Any = None
    op_type, domain, since = "", "", 0
    type_names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    fixed_types: dict[str, str] = {}

    def __init__(
        self,
        *inputs: str,
        outputs: str | Sequence[str] = (),
        name: str = "",
        **attributes: Any,
    ) -> None:
        self.inputs, self.name = tuple(inputs), name
        self.outputs = (outputs,) if isinstance(outputs, str) else tuple(outputs)
        self.captured: tuple[str, ...] = ()
        self.attributes = attributes
        if self.schema is not None:
            self._check()

    def _check(self) -> None:
        schema, known = self.schema, self.schema.attributes
        for name, value in self.attributes.items():
            if name not in known:
                raise self.error(f"{self.op_type}-{self.since} has no attribute {name!r}")
            convert: Any = _CONVERT.get(known[name].type)
            if convert is not None:
                try:
                    self.attributes[name] = convert(value)
                except (TypeError, ValueError):
                    wanted = PYTHON_TYPES[known[name].type]
                    raise self.error(f"{name} is {value!r}, wanted {wanted}") from None
        for name, attribute in known.items():
            if attribute.required and name not in self.attributes:
                raise self.error(f"{self.op_type}-{self.since} needs the attribute {name!r}")
        for what, given, low, high in (
            ("inputs", self.inputs, schema.min_input, schema.max_input),
            ("outputs", self.outputs, schema.min_output, schema.max_output),
        ):
            if not low <= len(given) <= high:
                raise self.error(f"has {len(given)} {what}, wanted {low} to {high}")

    @property
    def label(self) -> str:
        """How messages call it: operator, then its name or its first output."""
        domain = f"{self.domain}." if self.domain else ""
        own = self.name or next((o for o in self.outputs if o), "")
        return f"node {domain}{self.op_type} {own!r}"

    def accept(self, visitor: Any, *context: Any) -> Any:
        """Call the visitor's method for this operator, visit_OPERATOR(node, *context)."""
        return visitor.visit_node(self, *context)

    def error(self, reason: str) -> OnnxError:
        """An OnnxError about this node."""
        return OnnxError(reason, node=self.label)

    def __repr__(self) -> str:
        given = ", ".join([*self.inputs, *(f"{k}={v!r}" for k, v in self.attributes.items())])
        return f"{self.op_type}({given}) -> {', '.join(self.outputs)}"


class UnknownNode(Node):
    """A node of an operator that the installed onnx has no schema of."""

    def __init__(self, op_type: str, domain: str, *inputs: str, **kw: Any) -> None:
        self.op_type, self.domain = op_type, domain
        super().__init__(*inputs, **kw)


def value_at(values: str, index: int) -> property:
    def get(self: Any) -> str:
        names = getattr(self, values)
        return names[index] if index < len(names) else ""

    return property(get)


def _values_from(values: str, index: int) -> property:
    return property(lambda self: getattr(self, values)[index:])


def _attribute(name: str, default: Any, doc: str) -> property:
    return property(lambda self: self.attributes.get(name, default), doc=doc)


def default_of(attribute: Any) -> Any:
    """The default of a schema's attribute as a Python value; None if it has none."""
    from onnx import helper

    proto = attribute.default_value
    if proto.type == 0:  # UNDEFINED: no default
        return None
    value = helper.get_attribute_value(proto)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (int, float)):
        return value
    return tuple(v.decode() if isinstance(v, bytes) else v for v in value)


def _type_name(formal: Any) -> str:
    """The name of a type that all values of a parameter have; "" where each has one of its own."""
    return formal.type_str if formal.is_homogeneous else ""


def make_class(schema: Any) -> type[Node]:
    """The class of one operator, from its schema."""
    members: dict[str, Any] = {
        "schema": schema,
        "op_type": schema.name,
        "domain": schema.domain,
        "since": schema.since_version,
        "__doc__": schema.doc or f"ONNX operator {schema.name}.",
        "type_names": (
            tuple(map(_type_name, schema.inputs)),
            tuple(map(_type_name, schema.outputs)),
        ),
        "__module__": __name__,
        "fixed_types": {
            c.type_param_str: c.allowed_type_strs[0]
            for c in schema.type_constraints
            if len(c.allowed_type_strs) == 1
        },
    }
    for prefix, values, formals in (
        ("i_", "inputs", schema.inputs),
        ("o_", "outputs", schema.outputs),
    ):
        for index, formal in enumerate(formals):
            make = _values_from if formal.option == _MANY else value_at
            members[prefix + formal.name] = make(values, index)
    types = {}
    for name, attribute in schema.attributes.items():
        types[name] = PYTHON_TYPES[attribute.type]
        members[name] = _attribute(name, default_of(attribute), attribute.description)
    members["__annotations__"] = types
    return type(schema.name, (Node,), members)


_CLASSES: dict[tuple[str, str, int], type[Node]] = {}
_NEWEST: dict[tuple[str, str], type[Node]] = {}
_OWN: dict[tuple[str, str], type[Node]] = {}  # of operators that ONNX does not have


def _class_of(schema: Any) -> type[Node]:
    key = (schema.domain, schema.name, schema.since_version)
    found = _CLASSES.get(key)
    if found is None:
        found = _CLASSES[key] = make_class(schema)
    return found


def operator_class(op_type: str, version: int | None = None, domain: str = "") -> type[Node]:
    """The class of an operator as it is in this version of its domain; the newest if left out.

    Raises:
        UnsupportedOperator: The installed onnx has no such operator, and nobody has defined one.
    """
    domain = "" if domain == "ai.onnx" else domain
    if (domain, op_type) in _OWN:
        return _OWN[domain, op_type]
    try:
        if version is None:
            return _class_of(defs.get_schema(op_type, domain=domain))
        return _class_of(defs.get_schema(op_type, version, domain))
    except (defs.SchemaError, TypeError):  # it takes no number of more than 32 bits
        raise UnsupportedOperator(
            f"there is no operator {op_type!r} in version {version} of the domain "
            f"{domain or 'ai.onnx'!r}"
        ) from None


def add_class(cls: type[Node]) -> None:
    """Let files hold nodes of a class that somebody has written.

    Raises:
        ValueError: ONNX has an operator of that name in that domain.
    """
    if (cls.domain, cls.op_type) in _NEWEST:
        raise ValueError(
            f"{cls.__name__}: ONNX has an operator {cls.op_type!r} in the domain "
            f"{cls.domain or 'ai.onnx'!r}; give the class another op_type or domain"
        )
    _OWN[cls.domain, cls.op_type] = cls


def _make_newest() -> None:
    for schema in defs.get_all_schemas():
        made = _class_of(schema)
        _NEWEST[schema.domain, schema.name] = made
        if schema.domain == "":
            globals()[schema.name] = made


_make_newest()
