# SPDX-License-Identifier: Apache-2.0
"""What tests compare arrays with."""

from __future__ import annotations

from typing import Any

from numpy.testing import assert_allclose as _assert_allclose

__all__ = ["assert_allclose"]


def assert_allclose(
    actual: Any, desired: Any, rtol: float = 1e-5, atol: float = 1e-6, **options: Any
) -> None:
    """numpy's, with numpy.allclose's tolerances.

    >>> assert_allclose(np.ones(2) + 1e-7, np.ones(2))
    """
    _assert_allclose(actual, desired, rtol, atol, **options)
