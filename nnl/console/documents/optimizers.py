# SPDX-License-Identifier: Apache-2.0
"""The optimizers and schedules that a configuration can name, with their options."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from nnl.console.documents.training import solvers
from nnl.console.palette.palette import REQUIRED, Property, arguments, first_sentence, property_of

# As nnl.console.documents.training.schedule reads them.
SCHEDULES = {
    "none": (),
    "step": (
        Property("epochs", "ints", True, doc="Epochs after which the rate falls."),
        Property("gamma", "float", default=0.1, doc="What the rate is multiplied by then."),
    ),
    "cosine": (),
    "poly": (Property("power", "float", default=1.0, doc="1 falls on a straight line."),),
    "exponential": (
        Property("gamma", "float", default=0.95, doc="What the rate is multiplied by every epoch."),
    ),
}


@cache
def schema() -> dict[str, Any]:
    """What the page offers."""
    return {
        "solvers": [_solver(n, k) for n, k in sorted(solvers().items()) if not _wraps_another(k)],
        "schedules": [
            {"type": name, "properties": [p.to_json() for p in properties]}
            for name, properties in SCHEDULES.items()
        ],
    }


def _wraps_another(kind: Any) -> bool:
    return "solver" in inspect.signature(kind).parameters


def _solver(name: str, kind: Any) -> dict[str, Any]:
    docs = arguments(kind.__doc__)
    found = [
        property_of(
            p.name, str(p.annotation), REQUIRED if p.default is p.empty else p.default, docs
        )
        for p in inspect.signature(kind).parameters.values()
    ]
    return {
        "type": name,
        "doc": first_sentence(kind.__doc__),
        "properties": [p.to_json() for p in found if p is not None],
    }
