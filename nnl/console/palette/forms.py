# SPDX-License-Identifier: Apache-2.0
"""Forms of plugins, read off their sources: nothing of them runs before somebody allows it.

Plugins are scripts with argparse, as for Neural Network Console: the help of an argument says its
kind in brackets, "(image)", and its default, "default=out.png".
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any

KINDS = (
    "csv model image variable int float bool text dir row file".split()
)  # what the help may say in brackets
_KIND = re.compile(rf"\(({'|'.join(KINDS)})(?:\s*,[^)]*)?\)")
_DEFAULT = re.compile(r"default\s*=\s*(\S+)")


@dataclass(frozen=True)
class Field:
    """One argument of a plugin."""

    name: str
    flag: str
    kind: str
    default: Any = None
    required: bool = False
    doc: str = ""
    choices: tuple[Any, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        choices = list(self.choices) if self.choices else None
        return {**vars(self), "choices": choices}


@dataclass(frozen=True)
class Form:
    """What a plugin asks for."""

    doc: str
    fields: tuple[Field, ...]

    @property
    def scope(self) -> str:
        """What it is about: a row, a trial, a data set, or a network."""
        kinds = {f.kind for f in self.fields}
        if "row" in kinds:
            return "row"
        return "trial" if "model" in kinds else "dataset" if "csv" in kinds else "network"


def read_form(source: str) -> Form:
    """The form of a plugin.

    Raises:
        ValueError: The source is no Python, or has no arguments.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"it is no Python: {error}") from None
    doc, fields = "", []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        name = node.func.id if isinstance(node.func, ast.Name) else name
        given = {k.arg: _constant(k.value) for k in node.keywords if k.arg}
        if name == "ArgumentParser":
            first = _constant(node.args[0]) if node.args else None
            doc = doc or str(given.get("description") or first or "")
        elif name == "add_argument":
            flags = [f for a in node.args if isinstance(f := _constant(a), str)]
            kind = next((k.value for k in node.keywords if k.arg == "type"), None)
            field = _field(flags, given, kind.id if isinstance(kind, ast.Name) else "")
            if field is not None:
                fields.append((node.lineno, node.col_offset, field))
    if not fields:
        raise ValueError("it has no arguments: it calls no add_argument")
    fields.sort(key=lambda f: f[:2])
    return Form(doc or _first_line(tree), tuple(f for _, _, f in fields))


def _first_line(tree: ast.Module) -> str:
    return (ast.get_docstring(tree) or "").strip().partition("\n")[0]


def _constant(node: ast.expr) -> Any:
    """The value of an expression that is one; None for any other."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _field(flags: list[str], given: dict[str, Any], python_type: str) -> Field | None:
    if not flags or "-h" in flags:
        return None
    long = next((f for f in flags if f.startswith("--")), flags[0])
    name = str(given.get("dest") or long.lstrip("-").replace("-", "_"))
    text = str(given.get("help") or "")
    found = _KIND.search(text)
    switch = given.get("action") in ("store_true", "store_false")
    choices = given.get("choices")
    kind = found[1] if found else {"int": "int", "float": "float"}.get(python_type, "text")
    kind = "bool" if switch else "choice" if choices else kind
    said = _DEFAULT.search(text)
    default = given.get("default")
    if default is None and said:
        default = said[1].rstrip(",.;)")
    default = _converted(default, kind)
    doc = _DEFAULT.sub("", _KIND.sub("", text)).strip(" ,")
    required = bool(given.get("required", not long.startswith("-")))
    options = tuple(choices) if isinstance(choices, (list, tuple)) else None
    return Field(name, long, kind, default, required, doc, options)


def _converted(value: Any, kind: str) -> Any:
    if isinstance(value, str) and kind in ("int", "row", "float", "bool"):
        if kind == "bool":
            return value.lower() in ("true", "1", "yes")
        try:
            return float(value) if kind == "float" else int(value)
        except ValueError:
            return None
    return value


def argument(field: Field, value: Any) -> list[str]:
    """The words of a command line for a value.

    Raises:
        ValueError: It is of another kind.
    """
    wanted = {"int": int, "row": int, "float": (int, float), "bool": bool}.get(field.kind, str)
    number = isinstance(value, bool) and field.kind != "bool"
    if not isinstance(value, wanted) or number:
        raise ValueError(f"{field.name} is {str(value)[:60]!r}, wanted {field.kind}")
    if field.kind == "choice" and field.choices and value not in field.choices:
        raise ValueError(f"{field.name} is {value[:60]!r}, wanted one of {field.choices}")
    if isinstance(value, str) and "\0" in value:
        raise ValueError(f"{field.name} has a character that no argument may have")
    if not field.flag.startswith("-"):
        if str(value).startswith("-"):
            raise ValueError(f"{field.name} is {str(value)[:60]!r}, wanted no option")
        return [str(value)]
    if field.kind == "bool":
        return [field.flag] if value else []
    return [f"{field.flag}={value}"]
