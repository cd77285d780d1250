# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a node, and what repairs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnl.console.palette.palette import Property


@dataclass
class Problem:
    """What is wrong with a node, with what repairs it; see the API."""

    code: str
    message: str
    network: str
    node: str | None = None
    property: str | None = None
    input: str | None = None
    fix: dict[str, Any] | None = None
    severity: str = "error"


def set_property(network: str, node: str, changes: Mapping[str, Any], label: str) -> dict[str, Any]:
    """A fix that changes properties."""
    edits = [
        {"op": "set", "network": network, "node": node, "property": name, "value": value}
        for name, value in changes.items()
    ]
    return {"label": label, "edits": edits}


def said(value: Any) -> str:
    """A value as messages show it."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


_WANTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "ints": "whole numbers",
    "floats": "numbers",
}


def wanted(known: Property, value: Any) -> str:
    """What is wanted instead of a value; "" where it is of the right kind."""
    if value is None:
        return "" if known.optional or known.required else _WANTED.get(known.kind, "a value")
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    whole = number and value == int(value)
    if known.kind in ("ints", "floats"):
        many = value if isinstance(value, (list, tuple)) else [value]
        kind = int if known.kind == "ints" else (int, float)
        right = all(isinstance(v, kind) and not isinstance(v, bool) for v in many)
    elif known.kind == "choice":
        right = value in (known.choices or ())
    else:
        right = {"int": whole, "float": number, "bool": isinstance(value, bool)}.get(
            known.kind, isinstance(value, str)
        )
    if right and number and abs(value) > 2**53:
        right = False
    if known.kind == "choice":
        return "" if right else f"one of {', '.join(known.choices or ())}"
    return "" if right else _WANTED.get(known.kind, "a text")


def feeds(column: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether minibatches of a column fill an input, as training fills it."""
    filled = (2, *shape)
    try:
        return np.broadcast_shapes((2, *column), filled) == filled
    except ValueError:
        return False
