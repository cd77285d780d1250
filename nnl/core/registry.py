# SPDX-License-Identifier: Apache-2.0
"""All functions by name; arithmetic of Variables and arrays finds them here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nnl.core.op import Op

OPS: dict[str, Op] = {}
RULES: dict[str, Callable[..., Any]] = {}  # gradients for nnl.grad that users gave, by type name
