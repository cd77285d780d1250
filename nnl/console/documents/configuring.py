# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a configuration, told while it is typed, by what refuses it in training."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from nnl.console.documents.document import Document, Invalid
from nnl.console.documents.training import Data, context, make_solver, number, schedule, whole
from nnl.console.errors import Refused


def config_problems(document: Document, train: Data, valid: Data | None) -> list[dict[str, Any]]:
    """What is wrong, and where: "config.batch_size", "config.optimizer.properties.lr".

    Args:
        train, valid: The data sets that are chosen; of `Data("")` there is none.
    """
    config = document.config
    optimizer = config["optimizer"]
    problems: list[dict[str, Any]] = []

    def tell(where: str, message: str, severity: str = "error") -> None:
        problems.append({"where": where, "message": message, "severity": severity})

    def tried(check: Callable[[], Any], where: str = "config") -> Any:
        try:
            return check()
        except Invalid as error:
            tell(_place(error.where or where, str(error), config), _sentence(error))
        except Refused as error:
            tell(where, error.message)
        return None

    batch = tried(lambda: whole(config, "batch_size", 1))
    tried(lambda: whole(config, "max_epoch", 1))
    tried(lambda: whole(config, "seed", 0))
    early = config.get("early_stop") or {}
    if early.get("epochs") is not None:
        tried(lambda: whole(early, "epochs", 0, "config.early_stop"))
    tried(lambda: context(config), "config.context")
    solver = tried(lambda: make_solver(optimizer))
    tried(lambda: number(optimizer, "weight_decay", where="config.optimizer"))
    rate = 1.0 if solver is None else solver.learning_rate()
    tried(lambda: schedule(optimizer.get("schedule") or {}, rate, 1, 1))
    chosen = config.get("dataset") or {}
    if not train.csv:
        gone = chosen.get("train") is not None
        text = "the training set is gone" if gone else "there is no data set to train with"
        tell("config.dataset.train", f"{text}: choose one", "error" if gone else "warning")
    elif batch is not None and batch > train.rows:
        text = f"the training set has {train.rows} rows, fewer than a minibatch: some come twice"
        tell("config.batch_size", text, "warning")
    if chosen.get("valid") is not None and valid is None:
        tell("config.dataset.valid", "the validation set is gone: choose one")
    return problems


def _place(where: str, message: str, config: Mapping[str, Any]) -> str:
    """The place of the property that a message names, of those at a place."""
    inner: Any = {"config": config}
    for key in where.split("."):
        inner = inner.get(key) if isinstance(inner, Mapping) else None
    names = inner if isinstance(inner, Mapping) else {}
    found = next((n for n in names if re.search(rf"\b{re.escape(n)}\b", message)), None)
    return where if found is None else f"{where}.{found}"


def _sentence(error: Invalid) -> str:
    """What an error says without the place, which stands beside it."""
    return str(error).removeprefix(f"{error.where}: ")
