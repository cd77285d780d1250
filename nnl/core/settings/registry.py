# SPDX-License-Identifier: Apache-2.0
"""All functions by name; arithmetic of Variables and arrays finds them here."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nnl.core.ops.op import Op

OPS: dict[str, Op] = {}
# Gradients for nnl.grad that users gave, by type name.
# (node, gradients of its outputs, {name: what its own gradient needs}) -> gradients of its inputs
RULES: dict[str, partial[Any]] = {}
