# SPDX-License-Identifier: Apache-2.0
"""Which functions the OpenCL backend has kernels for; the rest runs on the host."""

from __future__ import annotations

from nnl.core.ops.elementwise import is_elementwise
from nnl.core.ops.op import OPS


def covered() -> list[str]:
    """Names of the functions and updates that have kernels, for some types and shapes.

    No device is needed to ask.
    """
    from nnl.ext.opencl import setups

    return sorted({*setups(), *filter(is_elementwise, OPS)})
