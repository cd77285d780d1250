# SPDX-License-Identifier: Apache-2.0
"""What is public in nnl: its modules, found by walking them, and their names."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import nnl
from nnl.nnabla.paths import PATHS

# Folders all of whose modules are for users; of others, those with names of their own are.
OPEN = ("nnl",)


def modules() -> list[str]:
    """The modules that programs import: without underscores, and not parts of others."""
    found = {"nnl", *(f"nnl.{path}" for path, of in PATHS.items() if of)}
    for info in pkgutil.walk_packages(nnl.__path__, "nnl."):
        parent = info.name.rpartition(".")[0]
        if parent in OPEN or info.ispkg and hasattr(import_module(info.name), "__all__"):
            found.add(info.name)
    return sorted(name for name in found if "._" not in name)


def names(module: str) -> dict[str, Any]:
    """The public names of a module: those of __all__, else what it defines, else what it offers."""
    if sources := PATHS.get(module.removeprefix("nnl.")):
        return {name: thing for source in sources for name, thing in of(source).items()}
    return of(module)


def of(source: str) -> dict[str, Any]:
    """The names of a module itself, or those of it that a row of the table has."""
    module, _, chosen = source.partition(":")
    found = import_module(module)
    listed = [n for n in chosen.split() if n[0] != "_"] or getattr(found, "__all__", None)
    if listed is None:
        ours = {
            name: value
            for name, value in vars(found).items()
            if not name.startswith("_")
            and (inspect.isclass(value) or inspect.isfunction(value))
            and value.__module__.startswith("nnl.")
            and value.__module__ != "nnl.core.arguments.annotations"
        }
        listed = [n for n, v in ours.items() if v.__module__ == found.__name__] or list(ours)
    return {name: getattr(found, name) for name in listed if callable(getattr(found, name))}


def things() -> Iterator[tuple[str, str, Any]]:
    """(module, name, object) of every public name, objects with several names once."""
    found: dict[int, tuple[str, str, Any]] = {}
    for module in modules():
        for name, thing in names(module).items():
            home = str(getattr(thing, "__module__", ""))
            if id(thing) not in found or f"{home}.".startswith(f"{module}."):
                found[id(thing)] = module, name, thing
    yield from found.values()
