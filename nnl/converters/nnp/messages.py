# SPDX-License-Identifier: Apache-2.0
"""The protobuf messages of NNabla's files, built at run time from the table `messages.tsv`.

There is no generated code: the first call of `messages()` builds the classes with the protobuf
package, in a pool of their own, so they do not meet those of an NNabla in the same process. The
numbers are those of NNabla 1.38 to 1.40; text files name their fields and fit every release.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from nnl.ext.native import library


class Field(NamedTuple):
    """One row of the table.

    Attributes:
        message: The message it belongs to.
        name, number: Name and number in that message; "" and 0 declare a message without fields.
        type: A protobuf scalar type, the name of a message of the table, or map<string,Message>.
        label: singular, repeated, packed or map.
        oneof: Name of the one-of group it is in, empty for none.
        default: Of proto2, empty for none.
    """

    message: str
    name: str
    number: int
    type: str
    label: str = "singular"
    oneof: str = ""
    default: str = ""


def rows(table: str) -> list[Field]:
    """The rows of a table whose columns are separated by white space, in the order of Field."""
    split = [line.split() for line in table.splitlines() if line.strip()]
    return [
        Field(r[0], r[1], int(r[2]), *r[3:]) if len(r) > 1 else Field(r[0], "", 0, "")
        for r in split
    ]


def build(
    table: Iterable[Field],
    syntax: str = "proto3",
    enums: Mapping[str, Mapping[str, int]] | None = None,
) -> dict[str, Any]:
    """Message classes by name: no package, unknown fields kept.

    Args:
        enums: {name of a type: {name of a value: its number}}.
    Raises:
        ValueError: A type is neither a protobuf scalar nor a message or enum that is given.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    fields = list(table)
    names = list(dict.fromkeys(f.message for f in fields))
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="nnl/nnabla.proto", syntax=syntax)
    of = {name: file.message_type.add(name=name) for name in names}
    enums = enums or {}
    for name, values in enums.items():
        # in a message of its own, which the names of its values need not share
        enum = file.message_type.add(name=f"{name}Enum").enum_type.add(name=name)
        for value, number in values.items():
            enum.value.add(name=value, number=number)

    def describe(message: Any, f: Field) -> Any:
        d = message.field.add(name=f.name, number=f.number, label=kinds.LABEL_OPTIONAL)
        if f.type in of:
            d.type, d.type_name = kinds.TYPE_MESSAGE, f".{f.type}"
        elif f.type in enums:
            d.type, d.type_name = kinds.TYPE_ENUM, f".{f.type}Enum.{f.type}"
        elif f"TYPE_{f.type.upper()}" in kinds.Type.keys():
            d.type = kinds.Type.Value(f"TYPE_{f.type.upper()}")
        else:
            raise ValueError(f"{f.message}.{f.name} has the type {f.type!r}, which is not defined")
        return d

    for f in fields:
        message = of[f.message]
        if not f.name:
            continue
        if f.label == "map":
            key, value = f.type.removeprefix("map<").removesuffix(">").split(",")
            entry_name = "".join(p.capitalize() for p in f.name.split("_")) + "Entry"
            entry = message.nested_type.add(name=entry_name)
            entry.options.map_entry = True
            describe(entry, Field(f.message, "key", 1, key))
            describe(entry, Field(f.message, "value", 2, value))
            d = message.field.add(name=f.name, number=f.number, label=kinds.LABEL_REPEATED)
            d.type, d.type_name = kinds.TYPE_MESSAGE, f".{f.message}.{entry_name}"
            continue
        d = describe(message, f)
        if f.label in ("repeated", "packed"):
            d.label = kinds.LABEL_REPEATED
        if f.label == "packed":
            d.options.packed = True
        if f.default:
            d.default_value = f.default
        if f.oneof:
            groups = [o.name for o in message.oneof_decl]
            if f.oneof not in groups:
                message.oneof_decl.add(name=f.oneof)
                groups.append(f.oneof)
            d.oneof_index = groups.index(f.oneof)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names
    }


@cache
def messages() -> dict[str, Any]:
    """The message classes of the table by name, built once."""
    text = resources.files(__package__).joinpath("messages.tsv").read_text("utf-8")
    return build(rows(text.partition("\n")[2]))  # the first line names the columns


@cache
def _fast_reader() -> Any:
    """What turns text as programs write it into its binary form; None without the native engine.

    It is twenty times as fast as the protobuf package, which reads any text."""
    native = library()
    return None if native is None else native.MessageText(_described)


def _described(name: str) -> list[tuple[str, int, int, str, str]]:
    """(name, number, type, what may stand only once, name of the message in it) of the fields."""
    rows = []
    for f in messages()[name].DESCRIPTOR.fields:
        group, inner = f.containing_oneof, f.message_type
        once = "" if _is_repeated(f) else f.name if group is None else group.name
        is_map = inner is not None and inner.GetOptions().map_entry
        kind = 0 if is_map else f.type
        rows.append((f.name, f.number, kind, once, "" if inner is None or is_map else inner.name))
    return rows


def _is_repeated(d: Any) -> bool:
    # protobuf 6 has the flag and warns of `label`
    return bool(d.is_repeated if hasattr(d, "is_repeated") else d.label == d.LABEL_REPEATED)


def binary_form(name: str, text: bytes) -> bytes | None:
    """The binary form of a message in text form; None unless it is as programs write it."""
    reader = _fast_reader()
    found: bytes | None = None if reader is None else reader.encoded(name, text)
    return found


def copy_of(message: Any) -> Any:
    """The same message, to be changed."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def parse(name: str, content: bytes, text: bool, where: str) -> Any:
    """A message from its binary or text form; what the table does not know is skipped.

    Raises:
        ValueError: The content is not such a message; the text starts with `where`.
    """
    from google.protobuf import text_format
    from google.protobuf.message import DecodeError

    message = messages()[name]()
    try:
        binary = binary_form(name, content) if text else content
        if binary is None:
            text_format.Parse(content.decode("utf-8"), message, allow_unknown_field=True)
        else:
            message.ParseFromString(binary)
    except (DecodeError, text_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{where}: no {name} message: {error}") from error
    return message
