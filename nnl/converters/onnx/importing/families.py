# SPDX-License-Identifier: Apache-2.0
"""Importing this registers every importer."""

from importlib import import_module

_FAMILIES = (
    "arithmetic",
    "shape",
    "indexing",
    "reduction",
    "layers.convolution",
    "layers.pooling",
    "layers.normalization",
    "control",
    "layers.recurrent",
    "layers.training",
    "signal",
    "image",
    "quantized.quantization",
    "quantized.weights",
    "quantized.operators",
    "layers.transformers",
    "learning.text",
    "learning.models",
    "learning.features",
    "learning.regex",
)

for _family in _FAMILIES:
    import_module(f"nnl.converters.onnx.importing.{_family}")
