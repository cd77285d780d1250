# SPDX-License-Identifier: Apache-2.0
import pytest

from nnl.workspace import Workspace


@pytest.fixture(autouse=True)
def workspace():
    """Names of one test are not those of another."""
    with Workspace({}) as made:
        yield made
