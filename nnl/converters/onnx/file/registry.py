# SPDX-License-Identifier: Apache-2.0
"""Who converts which operator: one handler per operator and direction, in one table per format.

    @onnx_import("Conv")
    def conv(ctx, node, x, w, b=None):          # values in, value or tuple of values out
        return F.convolution(...)

    @onnx_export("convolution")
    def convolution(ctx, node):                 # a node of an nnl graph; ctx adds ONNX nodes
        ...

Functions that map one to one need no handler: `Onnx("Softmax", axis="axis")` on the op says it
for both directions. Where there is a handler for one of them, it is asked first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from nnl.core.ops.op import OPS

Handler = Callable[..., Any]


class Entry:
    """One handler: the operator, its domain, and the first version it is for."""

    __slots__ = ("name", "domain", "since", "handler")

    def __init__(self, name: str, domain: str, since: int, handler: Handler) -> None:
        self.name, self.domain, self.since, self.handler = name, domain, since, handler


class Registry:
    """Handlers of one file format, by direction.

    Args:
        format: Name of the format, for messages and tables.
    """

    def __init__(self, format: str) -> None:
        self.format = format
        self.imports: dict[tuple[str, str], list[Entry]] = {}
        self.exports: dict[str, list[Entry]] = {}

    def importer(self, *names: str, since: int = 1, domain: str = "") -> Callable[[Any], Any]:
        """Decorator: this function imports the operators `names` from version `since` on.

        Raises:
            ValueError: Such a handler exists already.
        """

        def register(handler: Handler) -> Handler:
            for name in names:
                entries = self.imports.setdefault((domain, name), [])
                self._add(entries, Entry(name, domain, since, handler), "import")
            return handler

        return register

    def exporter(self, *names: str, since: int = 1) -> Callable[[Any], Any]:
        """Decorator: this function exports the nnl functions `names`, to versions from `since` on.

        Raises:
            ValueError: Such a handler exists already.
        """

        def register(handler: Handler) -> Handler:
            for name in names:
                entries = self.exports.setdefault(name, [])
                self._add(entries, Entry(name, "", since, handler), "export")
            return handler

        return register

    def _add(self, entries: list[Entry], new: Entry, direction: str) -> None:
        if any(e.since == new.since for e in entries):
            raise ValueError(
                f"{self.format} {direction}: {new.name} has a handler since {new.since} already"
            )
        entries.append(new)
        entries.sort(key=lambda e: -e.since)

    def find_import(self, name: str, version: int, domain: str = "") -> Handler | None:
        """The newest handler of an operator that is for this version; None if there is none."""
        return _newest(self.imports.get((domain, name), ()), version)

    def find_export(self, name: str, version: int) -> Handler | None:
        """The newest handler of an nnl function for this version; None if there is none."""
        return _newest(self.exports.get(name, ()), version)


def _newest(entries: Any, version: int) -> Handler | None:
    return next((e.handler for e in entries if e.since <= version), None)


ONNX = Registry("onnx")
onnx_import = ONNX.importer
onnx_export = ONNX.exporter


def one_to_one() -> dict[str, Any]:
    """The nnl op of every ONNX operator that maps to it without a handler, by operator name."""
    return _one_to_one(len(OPS))


@cache
def _one_to_one(known: int) -> dict[str, Any]:
    return {op.onnx.op_type: op for op in OPS.values() if op.onnx is not None}


class Whole:
    """What importers ask of a run, where other formats call them: sizes are whole, none is only a
    bound, and no slice ends where only the run knows."""

    open = bounded = cuts = False
