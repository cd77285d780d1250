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
from nnl.nnabla.normalization import (  # noqa: F401
    BatchNormalizationInOutAdapter,
    _apply_affine,
    _check_axis,
    _check_batch_axis_and_force_list,
    _create_bn_dummy_vars,
    _force_list,
    _get_axes_excluding,
    _init_beta_gamma,
)

__all__ = [
    "BatchNormalizationInOutAdapter",
    "batch_normalization",
    "fused_batch_normalization",
    "group_normalization",
    "instance_normalization",
    "layer_normalization",
    "sync_batch_normalization",
    "tensor_normalization",
    "weight_standardization",
]
