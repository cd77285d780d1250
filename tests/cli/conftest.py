# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator

import pytest

import nnl as nn


@pytest.fixture(autouse=True)
def no_parameters() -> Iterator[None]:
    nn.clear_parameters()
    yield
    nn.clear_parameters()
