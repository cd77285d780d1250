# SPDX-License-Identifier: Apache-2.0
"""Counts operators, in a Python without pytest too.

python -m tests.deep500.counted BACKEND
"""

from __future__ import annotations

import sys

from nnl.deep500 import operators
from nnl.deep500.cases import cases


def counted(backend: str) -> tuple[int, int]:
    """Operators on float32 that have a test of one node, and how many of them pass one."""
    tests = [c for c in cases() if c.operator and c.floating]
    good = {r.operator for r in operators.check(tests, backend) if r.status == operators.PASS}
    return len({c.operator for c in tests}), len(good)


if __name__ == "__main__":
    print(*counted(sys.argv[1]))
