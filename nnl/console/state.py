# SPDX-License-Identifier: Apache-2.0
"""A console: one folder with its store, and what runs in it."""

from __future__ import annotations

from pathlib import Path

from nnl.console.document import Document
from nnl.console.store import Store


class Console:
    """All that routes use.

    Args:
        folder: Where everything is kept; made if there is none.
        read_only: Whether nothing may be changed.
        children: How many trainings may run at once.
    """

    def __init__(self, folder: Path, read_only: bool = False, children: int = 2) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.read_only, self.children = folder.resolve(), read_only, children
        self.store = Store(self.folder)

    def columns(self, document: Document) -> dict[str, tuple[int, ...]]:
        """Shapes of the columns of the data set that a document trains with."""
        return {}

    def close(self) -> None:
        """End what runs with this server; trials go on."""
        self.store.close()
