# SPDX-License-Identifier: Apache-2.0
"""A graph as a Network message."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from nnl.converters.nnp.function_messages import (
    SHAPED,
    argument_field,
    type_of,
    visible_inputs,
    visible_outputs,
    write_arguments,
)
from nnl.core.graph.node import Node, Value, capture
from nnl.core.graph.variable import Variable

logger = logging.getLogger("nnl")

Key = tuple[int, int]


class WrittenNetwork:
    """A graph with names for its variables.

    Args:
        entry: An entry of contents["networks"]: name, batch_size, outputs, names. Outputs without
            a name may be listed under `unnamed`. `paths` holds, by id, the functions that belong to
            the network (the others give inputs), and what stands before their names.
        parameters: Variables by name, which the file calls parameters.
        variable_batch_size: Write the batch size as -1 wherever it stands in a shape.
    Attributes:
        message: The Network message.
        losses: Names of the variables that no function reads.
        parameters: Names of the parameters that the network uses.
    Raises:
        ValueError: The entry is incomplete, two variables have one name, or a Reshape does not
            keep the batch axis; NotImplementedError: a function has no type in .nnp files.
    """

    def __init__(
        self,
        message: Any,
        entry: Mapping[str, Any],
        parameters: Mapping[str, Variable],
        variable_batch_size: bool,
    ) -> None:
        for key, kind in (("name", str), ("outputs", Mapping), ("batch_size", int)):
            if not isinstance(entry.get(key), kind):
                raise ValueError(
                    f"save: contents['networks'] has an entry whose {key!r} is "
                    f"{entry.get(key)!r}, wanted a {kind.__name__.lower()}"
                )
        self.message, self.name = message, entry["name"]
        self.where = f"save: network {self.name!r}"
        message.name, message.batch_size = self.name, entry["batch_size"]
        self._aliases: dict[Key, Value] = {}
        self._paths: Mapping[int, str] | None = entry.get("paths")
        self._given = self._names_given(entry, parameters)
        ends = (*entry["outputs"].values(), *entry.get("unnamed", ()))
        outputs = [v.edge for v in ends]
        self._nodes = [n for n in capture(outputs) if self._inside(n) and not self._is_alias(n)]
        self._name_all(outputs)
        self._warn_of_lost_values()
        self._write_functions()
        self.batch = self._batch_size() if variable_batch_size else None
        self._moving = self._batch_dependent() if self.batch is not None else set()
        self._write_shapes()

    def resolve(self, name: str, what: str) -> str:
        """The name that the file uses for a variable which the contents call `name`."""
        key = self._given.get(name)
        if key is None and name in self._names.values():
            return name
        if key is None or key not in self._names:
            raise ValueError(
                f"save: {what}: {name!r} is no variable of the network {self.name!r}, which has "
                f"{sorted(n for n in self._names.values() if not n.startswith('@'))}"
            )
        return self._names[key]

    def names(self) -> dict[Key, str]:
        """Names of all variables."""
        return dict(self._names)

    # ---- names ----

    def _names_given(
        self, entry: Mapping[str, Any], parameters: Mapping[str, Variable]
    ) -> dict[str, Key]:
        given: dict[str, Key] = {}
        for group in (entry.get("names") or {}, entry["outputs"]):
            for name, v in group.items():
                if not isinstance(v, Variable):
                    raise TypeError(
                        f"{self.where}: {name!r} is {type(v).__name__}, wanted nnl.Variable"
                    )
                if given.setdefault(name, v.edge.key) != v.edge.key:
                    raise ValueError(f"{self.where}: two variables have the name {name!r}")
        self._parameters = {v.edge.key: name for name, v in parameters.items()}
        taken = {name for key, name in self._parameters.items()}
        for name, key in given.items():
            if name in taken and self._parameters.get(key) != name:
                raise ValueError(f"{self.where}: the variable {name!r} has the name of a parameter")
        return given

    def _inside(self, node: Node | None) -> bool:
        """Whether a function belongs to the network."""
        return node is not None and (self._paths is None or id(node) in self._paths)

    def _is_alias(self, node: Node) -> bool:
        """A function of this engine only, whose output is one of its inputs."""
        source = node.inputs[1] if node.op.name == "store" else None
        if source is not None:
            self._aliases[id(node), 0] = source
        return source is not None

    def _source(self, v: Value) -> Value:
        while v.key in self._aliases:
            v = self._aliases[v.key]
        return v

    def _name_all(self, outputs: list[Value]) -> None:
        """Give every variable of the graph its name, in the order of the functions."""
        self._values: dict[Key, Value] = {}
        self._names: dict[Key, str] = {}
        wanted = {key: name for name, key in self._given.items()}
        self._used = set(self._given) | set(self._parameters.values())
        self._counts: dict[str, int] = {}
        for node in self._nodes:
            type_name = type_of(node, self.where)
            for v in visible_inputs(node):
                self._name(self._source(v), f"{type_name}_in", wanted, node)
            for i in range(visible_outputs(node)):
                data = None if node.outs is None else node.outs[i]
                out = Value.of(node, i, node.out_specs[i], False, data)
                self._name(out, f"{type_name}_out", wanted, node)
        for v in outputs:
            if self._source(v).key not in self._names:
                raise ValueError(
                    f"{self.where}: the output {wanted.get(v.key)!r} was computed by no function: "
                    "save what was built in static mode, without nnl.auto_forward"
                )
            self._names[v.key] = self._names[self._source(v).key]

    def _name(self, v: Value, kind: str, wanted: Mapping[Key, str], node: Node) -> None:
        if v.key not in self._names:
            self._values[v.key] = v
            name = self._parameters.get(v.key) or wanted.get(v.key)
            self._names[v.key] = name or self._numbered(kind, node)

    def _warn_of_lost_values(self) -> None:
        """Of what looks like parameters that somebody has taken out of the registry."""
        given = set(self._given.values())
        lost = [
            v.name or self._names[key]
            for key, v in self._values.items()
            if v.node is None
            and (v.name or v.need_grad)
            and key not in self._parameters
            and key not in given
        ]
        if lost:
            logger.warning(
                "%s: %d of its inputs are neither in `names` nor parameters of the current scope, "
                "so their values are not saved: %s",
                self.where,
                len(lost),
                ", ".join(map(repr, lost[:4])) + (" ..." if len(lost) > 4 else ""),
            )

    def _numbered(self, kind: str, node: Node) -> str:
        """@network/kind, then with _1, _2 ..., as long as nobody else has that name."""
        path = f"@{self.name}" if self._paths is None else self._paths[id(node)]
        whole = f"{path}/{kind}" if path else kind
        while True:
            n = self._counts.get(whole, 0)
            self._counts[whole] = n + 1
            name = whole + (f"_{n}" if n else "")
            if name not in self._used:
                return name

    # ---- functions ----

    def _write_functions(self) -> None:
        self._messages: dict[int, Any] = {}
        read: set[Key] = set()
        for node in self._nodes:
            message = self._messages[id(node)] = self.message.function.add()
            message.type = type_of(node, self.where)
            message.name = self._numbered(message.type, node)
            for v in visible_inputs(node):
                source = self._source(v)
                read.add(source.key)
                message.input.append(self._names[source.key])
            for i in range(visible_outputs(node)):
                message.output.append(self._names[id(node), i])
        self.losses = [
            self._names[key]
            for key, v in self._values.items()
            if self._inside(v.node) and key not in read
        ]

    # ---- shapes and the batch size ----

    def _batch_size(self) -> int | None:
        """First size of the input of the first function that has a base_axis."""
        for node in self._nodes:
            inputs = visible_inputs(node)
            if getattr(node.attrs, "base_axis", 0) and inputs and inputs[0].current_spec.shape:
                return inputs[0].current_spec.shape[0]
        return None

    def _batch_dependent(self) -> set[Key]:
        """Variables whose first size is the batch size, not by chance: no parameters, and nothing
        that is computed from parameters and constants alone."""
        moving = set()
        for key, v in self._values.items():
            if not self._inside(v.node) and key not in self._parameters:
                moving.add(key)
        fixed: list[Node] = []
        for node in self._nodes:
            keys = [self._source(v).key for v in visible_inputs(node)]
            outs = [(id(node), i) for i in range(visible_outputs(node))]
            if any(k in moving for k in keys):
                moving.update(outs)
            else:
                fixed.append(node)
        for node in fixed:
            # noise added to or multiplied with a batch has a value of its own for every sample
            if type_of(node, self.where) in SHAPED and self._meets_batch(node, moving):
                moving.add((id(node), 0))
        return {k for k in moving if self._values[k].current_spec.shape[:1] == (self.batch,)}

    def _meets_batch(self, node: Node, moving: set[Key]) -> bool:
        shape = node.out_specs[0].shape
        for user in self._nodes:
            keys = [self._source(v).key for v in visible_inputs(user)]
            if (id(node), 0) in keys and user.op.name in _ELEMENTWISE:
                others = [k for k in keys if k in moving]
                if any(self._values[k].current_spec.shape == shape for k in others):
                    return True
        return False

    def _shape(self, key: Key, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (-1, *shape[1:]) if key in self._moving else shape

    def _write_shapes(self) -> None:
        ordered = sorted(self._values.items(), key=lambda kv: kv[0] in self._parameters)
        for key, v in ordered:
            variable = self.message.variable.add()
            variable.name = self._names[key]
            variable.type = "Parameter" if key in self._parameters else "Buffer"
            variable.shape.SetInParent()
            variable.shape.dim.extend(self._shape(key, v.current_spec.shape))
        self.parameters = [self._names[k] for k, _ in ordered if k in self._parameters]
        fields = argument_field()
        for node in self._nodes:
            message = self._messages[id(node)]
            changed = self._changed_shape(node, message) if message.type in fields else {}
            write_arguments(node, message.type, message, changed)

    def _changed_shape(self, node: Node, message: Any) -> dict[str, Any]:
        """The argument `shape` with -1 for the batch size."""
        key = (id(node), 0)
        if message.type not in (*SHAPED, "Reshape") or self.batch is None:
            return {}
        if key in self._moving:
            return {"shape": self._shape(key, node.out_specs[0].shape)}
        if message.type == "Reshape" and self._source(visible_inputs(node)[0]).key in self._moving:
            raise ValueError(
                f"{self.where}: function {message.name!r}: reshape to {node.out_specs[0].shape} "
                f"does not keep the batch size {self.batch} in the first place: reshape to "
                f"({self.batch}, ...) or save with variable_batch_size=False"
            )
        return {}


_ELEMENTWISE = frozenset(
    ("add2", "sub2", "mul2", "div2", "pow2", "maximum2", "minimum2", "add_n", "mul_n", "where")
)
