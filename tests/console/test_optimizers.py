# SPDX-License-Identifier: Apache-2.0
"""What the page offers of optimizers and schedules is what a training takes."""

from __future__ import annotations

import inspect

import nnl.solvers as S
from nnl.console.documents.optimizers import SCHEDULES, schema
from nnl.console.documents.training import make_solver, schedule


def test_every_option_of_every_solver_is_offered_with_its_default():
    for entry in schema()["solvers"]:
        signature = inspect.signature(getattr(S, entry["type"])).parameters
        assert {p["name"]: p["default"] for p in entry["properties"] if not p["required"]} == {
            n: p.default for n, p in signature.items() if p.default is not p.empty
        }, entry["type"]
        assert {p["name"] for p in entry["properties"]} == set(signature)
        assert entry["doc"]


def test_the_offered_defaults_make_a_solver():
    for entry in schema()["solvers"]:
        given = {p["name"]: p["default"] for p in entry["properties"] if not p["required"]}
        assert make_solver({"type": entry["type"], "properties": given}) is not None


def test_a_training_knows_every_schedule_that_is_offered():
    for name in SCHEDULES:
        made = schedule({"type": name, "epochs": [1]}, 0.1, 100, 10)
        assert (made is None) == (name == "none")
