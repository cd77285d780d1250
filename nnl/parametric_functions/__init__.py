# SPDX-License-Identifier: Apache-2.0
"""Functions that own parameters.

Each is a function of `nnl.functions` with some of its inputs taken from the parameter registry,
where they are made on the first call: `PF.affine(x, 10, name="fc")` uses fc/affine/W and
fc/affine/b. The argument `name` opens a scope around the function's own.
"""

from nnl.core.arguments.suggest import module_getattr
from nnl.core.parameters.parameter import (
    clear_parameters,
    get_current_parameter_scope,
    get_parameter,
    get_parameter_or_create,
    get_parameters,
    parameter_scope,
    pop_parameter,
    set_parameter,
)
from nnl.parametric_functions.activation import prelu
from nnl.parametric_functions.affine import affine, embed, svd_affine
from nnl.parametric_functions.api import parametric_function_api
from nnl.parametric_functions.attention import (
    multi_head_attention,
    transformer,
    transformer_decode,
    transformer_encode,
)
from nnl.parametric_functions.binary import (
    binary_connect_affine,
    binary_connect_convolution,
    binary_weight_affine,
    binary_weight_convolution,
    inq_affine,
    inq_convolution,
)
from nnl.parametric_functions.convolution import (
    convolution,
    deconvolution,
    deformable_convolution,
    depthwise_convolution,
    depthwise_deconvolution,
)
from nnl.parametric_functions.factorization import cpd3_convolution, svd_convolution
from nnl.parametric_functions.min_max_quantization import (
    min_max_quantize,
    min_max_quantized_affine,
    min_max_quantized_convolution,
)
from nnl.parametric_functions.normalization import (
    batch_normalization,
    fused_batch_normalization,
    group_normalization,
    instance_normalization,
    layer_normalization,
    mean_subtraction,
    spectral_norm,
    sync_batch_normalization,
    weight_normalization,
)
from nnl.parametric_functions.quantization import (
    fixed_point_quantized_affine,
    fixed_point_quantized_convolution,
    pow2_quantized_affine,
    pow2_quantized_convolution,
    pruned_affine,
    pruned_convolution,
)
from nnl.parametric_functions.recurrent import LSTMCell, gru, lstm, lstm_cell, rnn

__all__ = [
    "LSTMCell",
    "affine",
    "batch_normalization",
    "binary_connect_affine",
    "binary_connect_convolution",
    "binary_weight_affine",
    "binary_weight_convolution",
    "clear_parameters",
    "convolution",
    "cpd3_convolution",
    "deconvolution",
    "deformable_convolution",
    "depthwise_convolution",
    "depthwise_deconvolution",
    "embed",
    "fixed_point_quantized_affine",
    "fixed_point_quantized_convolution",
    "fused_batch_normalization",
    "get_current_parameter_scope",
    "get_parameter",
    "get_parameter_or_create",
    "get_parameters",
    "group_normalization",
    "gru",
    "inq_affine",
    "inq_convolution",
    "instance_normalization",
    "layer_normalization",
    "lstm",
    "lstm_cell",
    "mean_subtraction",
    "min_max_quantize",
    "min_max_quantized_affine",
    "min_max_quantized_convolution",
    "multi_head_attention",
    "parameter_scope",
    "parametric_function_api",
    "pop_parameter",
    "pow2_quantized_affine",
    "pow2_quantized_convolution",
    "prelu",
    "pruned_affine",
    "pruned_convolution",
    "rnn",
    "set_parameter",
    "spectral_norm",
    "svd_affine",
    "svd_convolution",
    "sync_batch_normalization",
    "transformer",
    "transformer_decode",
    "transformer_encode",
    "weight_normalization",
]

__getattr__ = module_getattr(__name__, lambda: __all__)
