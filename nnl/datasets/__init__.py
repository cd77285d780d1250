# SPDX-License-Identifier: Apache-2.0
"""Small real data sets that come with packages, and data sets made of folders of pictures."""

from nnl.datasets.pictures import (
    Built,
    Shape,
    image_classification,
    object_detection,
    shaped,
)
from nnl.datasets.samples import SAMPLES, Sample, arrays, iterator, write

__all__ = [
    "SAMPLES",
    "Built",
    "Sample",
    "Shape",
    "arrays",
    "image_classification",
    "iterator",
    "object_detection",
    "shaped",
    "write",
]
