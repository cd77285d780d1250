# SPDX-License-Identifier: Apache-2.0
"""Fixtures for steps that run ahead."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import nnl as nn
from nnl.coexec.deferring.running import Running
from tests.coexec.schedules import Schedule, use


@pytest.fixture(autouse=True)
def alone(monkeypatch: Any) -> Any:
    """No run of another test; what a test has replaced is there until its run ends."""
    yield
    if Running.now is not None:
        Running.now.finish()


@pytest.fixture(autouse=True)
def plans_at_once(monkeypatch: Any) -> None:
    """Every step is followed, and every path that comes again has a plan: these are tested."""
    monkeypatch.setattr("nnl.coexec.policy.watch.OFTEN", 0)
    monkeypatch.setattr("nnl.coexec.plans.paths.runs_before_plan", lambda *what: 1)


@pytest.fixture
def dynamic() -> Any:
    with nn.auto_forward():
        yield


@pytest.fixture
def late(monkeypatch: Any, caplog: Any) -> Any:
    """Plans run when somebody waits for them, and not before; everything in dynamic mode."""
    caplog.set_level(logging.ERROR, "nnl")
    schedule = Schedule(0, "late")
    use(schedule, monkeypatch)
    with nn.auto_forward():
        yield schedule
        if Running.now is not None:
            Running.now.finish()
