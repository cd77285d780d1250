# SPDX-License-Identifier: Apache-2.0
"""A console: one folder with its store, and what runs in it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nnl.console.chat.models import Models
from nnl.console.data.datasets import DataSets
from nnl.console.documents.document import Document, parse
from nnl.console.documents.training import Data
from nnl.console.errors import Refused
from nnl.console.machine.sandbox import apart
from nnl.console.machine.store import Store, is_writable
from nnl.console.server.trash import KEEP_S, Trash
from nnl.console.trials.plugin_runs import Plugins
from nnl.console.trials.reports import Reports
from nnl.console.trials.searches import Searches
from nnl.console.trials.trials import NNL, Trials


@dataclass
class Opened:
    """An uploaded file: its network, which has its weights, and what is not as in the file."""

    document: Document
    report: list[tuple[str, str]]


class Console:
    """All that routes use.

    Args:
        folder: Where everything is kept; made if there is none.
        read_only: Whether nothing may be changed, as in a folder that cannot be written.
        children: How many trainings may run at once.
        command: What stands before the arguments of `nnl`.
    """

    def __init__(
        self,
        folder: Path,
        read_only: bool = False,
        children: int = 2,
        command: Sequence[str] = NNL,
    ) -> None:
        if is_writable(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.children = folder.resolve(), children
        self.store = Store(self.folder)
        self.read_only = read_only or not self.store.writable
        self.datasets = DataSets(self.store)
        self.trials = Trials(self.store, self.datasets, children, command)
        self.searches = Searches(self.store, self.trials)
        self.plugins = Plugins(self.store, self.datasets, self.trials)
        self.trash = Trash(self.trials, self.datasets)
        self.reports = Reports(self.folder)
        self.models = Models(self.folder, command)
        self.uploads = self.store.part("uploads")

    def begin(self) -> None:
        """Follow trials from now on."""
        if not self.read_only:
            self.trash.empty(KEEP_S)
            self.trials.begin()
            self.searches.begin()

    def data(self, document: Document) -> tuple[Data, Data | None]:
        """What a document trains and is validated with; no file where there is none any more."""
        chosen = document.config.get("dataset") or {}
        found = []
        for key in (chosen.get("train"), chosen.get("valid")):
            try:
                found.append(self.trials.data(key) if isinstance(key, str) else None)
            except Refused:  # it is gone, which training will say
                found.append(None)
        train, valid = found
        return train or Data("", valid.shapes if valid is not None else {}), valid

    def columns(self, document: Document) -> dict[str, tuple[int, ...]]:
        """Shapes of the columns of the data set that a document trains with."""
        return dict(self.data(document)[0].shapes)

    def opened(self, path: Path) -> Opened:
        """What an uploaded file holds."""
        weights = path.with_name(f"{path.name}.weights")
        found = apart("network", path, path.name, weights=str(weights))
        document = parse(found["document"])
        blob = self.trials.keep_weights(weights)
        document.weights_from = None if blob is None else {"blob": blob}
        return Opened(document, found["report"])

    @contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        """A file of this name that is gone afterwards."""
        where = self.uploads if self.store.writable else None
        with tempfile.TemporaryDirectory(dir=where) as folder:
            last = Path(name.replace("\\", "/")).name.encode("utf-8", "replace")[-200:]
            yield Path(folder) / last.decode("utf-8", "ignore")

    def close(self) -> None:
        """End what runs with this server; trials go on."""
        self.models.close()
        self.searches.close()
        self.trials.close()
        self.store.close()
