# SPDX-License-Identifier: Apache-2.0
from nnl.functions import (
    batch_normalization,
    fused_batch_normalization,
    group_normalization,
    instance_normalization,
    layer_normalization,
    sync_batch_normalization,
    tensor_normalization,
    weight_standardization,
)

__all__ = [
    "batch_normalization",
    "fused_batch_normalization",
    "group_normalization",
    "instance_normalization",
    "layer_normalization",
    "sync_batch_normalization",
    "tensor_normalization",
    "weight_standardization",
]
