# SPDX-License-Identifier: Apache-2.0
"""What tests of graphs share: each pass over a program must leave one that can run."""

import pytest

from nnl.graph import passes


@pytest.fixture(autouse=True)
def every_pass_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "VERIFY", True)
