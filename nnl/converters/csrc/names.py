# SPDX-License-Identifier: Apache-2.0
"""Names that networks and variables have in C. Nothing of a name reaches code as it is."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

MOST_CHARACTERS = 40


def identifier(name: str, default: str) -> str:
    """Letters, digits and underscores of ASCII for any name, a letter first."""
    found = re.sub(r"[^A-Za-z0-9_]", "_", name)[:MOST_CHARACTERS].strip("_")
    return found if re.match("[A-Za-z]", found) else f"{default}_{found}".rstrip("_")


def distinct(names: Iterable[str], default: str, taken: Collection[str] = ()) -> list[str]:
    """An identifier for each name, different from each other and from those that are taken."""
    found: list[str] = []
    used = set(taken)
    for name in names:
        wanted = base = identifier(name, default)
        n = 2
        while wanted in used or f"{wanted}_size" in used:
            wanted, n = f"{base}_{n}", n + 1
        used |= {wanted, f"{wanted}_size"}
        found.append(wanted)
    return found


def string(text: str) -> str:
    """A string literal; what is not a plain character of ASCII is bytes of UTF-8 in octal."""
    plain = re.compile(rb"[A-Za-z0-9 !#-&(-/:-<>@[\]^-`{-~=]")
    data = text.encode("utf-8", "surrogatepass")
    return (
        '"' + "".join(chr(b) if plain.fullmatch(bytes([b])) else f"\\{b:03o}" for b in data) + '"'
    )
