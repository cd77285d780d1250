# SPDX-License-Identifier: Apache-2.0
"""The element-wise function at the end of a fused op."""

from __future__ import annotations

from nnl.core.ops.op import OPS


def check_activation(op, name, known):
    """Raise unless the op can end with the function of that name."""
    if name not in known:
        raise ValueError(f"{op.name}: activation is {name!r}, wanted one of {sorted(known)}")


def activate(name, y, **arguments):
    """y after the function of that name, with these arguments or its defaults."""
    return y if name == "identity" else OPS[name](y, **arguments)
