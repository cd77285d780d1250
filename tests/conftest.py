# SPDX-License-Identifier: Apache-2.0
"""What all tests share: every pass over a program must leave one that can run."""

import gc

from nnl.graph import passes

passes.VERIFY = True


def pytest_collection_finish() -> None:
    """Tests live to the end: the garbage collector need not look at all of them every time."""
    gc.freeze()
