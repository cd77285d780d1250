# SPDX-License-Identifier: Apache-2.0
"""Importing this registers every importer."""

from importlib import import_module

_FAMILIES = (
    "import_arithmetic",
    "import_shape",
    "import_indexing",
    "import_reduction",
    "import_convolution",
    "import_pooling",
    "import_normalization",
    "import_control",
    "import_recurrent",
    "import_training",
    "import_signal",
    "import_image",
    "import_quantization",
    "import_quantized_weights",
    "import_quantized",
    "import_transformers",
    "import_text",
    "import_learning",
    "import_features",
    "import_regex",
)

for _family in _FAMILIES:
    import_module(f"nnl.converters.onnx.{_family}")
