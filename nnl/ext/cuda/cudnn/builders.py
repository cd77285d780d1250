# SPDX-License-Identifier: Apache-2.0
"""Which builder makes the graphs of an op: pure functions from a call to ways to compute it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nnl.ext.cuda.cudnn import attention, convolution, normalization, product
from nnl.ext.cuda.cudnn.spec import Work
from nnl.ext.device.registry import Operand
from nnl.ext.library import Abilities

__all__ = ["BUILDERS", "Builder"]

# (attributes, inputs, outputs) -> ways to compute the op, the best one first. Raises Declined.
Builder = Callable[[dict[str, Any], list[Operand | None], list[Operand]], list[Work]]

_AFTER_PRODUCTS = ("add2", "relu", "gelu", "tanh", "sigmoid", "swish")
ABILITIES = {
    "convolution": Abilities(last_in=(0,), last_out=(0,)),
    "convolution_data": Abilities(last_in=(0,), last_out=(0,)),
    "convolution_weight": Abilities(last_in=(0, 1)),
    "convolution_weight_bias": Abilities(last_in=(0, 1)),
    "deconvolution": Abilities(last_in=(0,), last_out=(0,)),
    "convolution_fused": Abilities(
        last_in=(0, 3),
        last_out=(0,),
        appends=("batch_normalization", *_AFTER_PRODUCTS, "relu6", "hard_sigmoid"),
    ),
    "affine_fused": Abilities(appends=_AFTER_PRODUCTS, adds_halves=True),
    "fused_batch_normalization": Abilities(appends=("add2", "relu")),
}

BUILDERS: dict[str, Builder] = {
    "convolution": convolution.forward,
    "convolution_fused": convolution.forward,
    "convolution_data": convolution.backward_data,
    "convolution_weight": convolution.backward_weight,
    "convolution_weight_bias": convolution.backward_weight,
    "deconvolution": convolution.deconvolution,
    "batch_normalization": normalization.batch_forward,
    "batch_normalization_with_statistics": normalization.batch_forward,
    "fused_batch_normalization": normalization.batch_forward,
    "fused_batch_normalization_with_statistics": normalization.batch_forward,
    "batch_normalization_backward_fused": normalization.batch_backward,
    "layer_normalization": normalization.layer_forward,
    "layer_normalization_with_statistics": normalization.layer_forward,
    "normalization_backward": normalization.backward,
    "affine": product.affine,
    "affine_fused": product.affine,
    "affine_weight": product.affine_weight,
    "batch_matmul": product.batch_matmul,
    "batch_matmul_bias": product.batch_matmul_bias,
    "attention": attention.forward,
    "attention_backward": attention.backward,
    "attention_packed": attention.packed,
    "attention_packed_backward": attention.packed_backward,
}
