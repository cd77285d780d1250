# SPDX-License-Identifier: Apache-2.0
"""Imports every module of export handlers, which registers them."""

from __future__ import annotations

from nnl.converters.onnx.exporting import (
    control,  # noqa: F401
    elementwise,  # noqa: F401
    images,  # noqa: F401
    layers,  # noqa: F401
    layout,  # noqa: F401
    reduction,  # noqa: F401
)
