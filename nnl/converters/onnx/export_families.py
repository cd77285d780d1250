# SPDX-License-Identifier: Apache-2.0
"""Imports every module of export handlers, which registers them."""

from __future__ import annotations

from nnl.converters.onnx import (  # noqa: F401
    export_control,
    export_convolution,
    export_detection,
    export_elementwise,
    export_language,
    export_layout,
    export_matrix,
    export_normalization,
    export_quantization,
    export_random,
    export_recurrent,
    export_reduction,
    export_resize,
    export_sampling,
)
