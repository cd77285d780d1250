# SPDX-License-Identifier: Apache-2.0
"""Imports every module of export handlers, which registers them."""

from __future__ import annotations

from nnl.converters.onnx.exporting import control  # noqa: F401
from nnl.converters.onnx.exporting.arrays import (
    elementwise,  # noqa: F401
    layout,  # noqa: F401
    matrix,  # noqa: F401
    random,  # noqa: F401
    reduction,  # noqa: F401
)
from nnl.converters.onnx.exporting.layers import (
    convolution,  # noqa: F401
    detection,  # noqa: F401
    language,  # noqa: F401
    normalization,  # noqa: F401
    quantization,  # noqa: F401
    recurrent,  # noqa: F401
    resize,  # noqa: F401
    sampling,  # noqa: F401
)
