# SPDX-License-Identifier: Apache-2.0
"""The logger in a process of its own, where nothing has set it up before."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import logging
from nnl.logger import logger
logger.debug("details"); logger.info("news"); logging.getLogger("other").info("not ours")
print(logging.getLogger().handlers)
"""


def run(level: str | None) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "NNL_LOG_LEVEL"}
    if level is not None:
        environment["NNL_LOG_LEVEL"] = level
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)


def test_messages_go_to_stderr_and_the_root_logger_is_left_alone() -> None:
    ran = run(None)
    assert "[nnl][INFO]: news" in ran.stderr
    assert "details" not in ran.stderr
    assert "not ours" not in ran.stderr
    assert ran.stdout == "[]\n"


@pytest.mark.parametrize(("level", "count"), [("DEBUG", 2), ("error", 0), ("10", 2)])
def test_environment_sets_the_level(level: str, count: int) -> None:
    assert run(level).stderr.count("[nnl]") == count


def test_unknown_level_is_reported() -> None:
    assert "NNL_LOG_LEVEL=LOUD is no level of logging; INFO is used" in run("loud").stderr
