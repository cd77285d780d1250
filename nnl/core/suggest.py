# SPDX-License-Identifier: Apache-2.0
"""What may have been meant by a name that does not exist."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

# What other frameworks call it -> what it may be called here; the first that exists is suggested.
ELSEWHERE = {
    name: ours.split()
    for ours, names in {
        "affine": "linear dense fully_connected fc addmm",
        "convolution": "conv conv1d conv2d conv3d",
        "deconvolution": "conv_transpose conv_transpose1d conv_transpose2d conv_transpose3d",
        "depthwise_convolution": "depthwise_conv2d",
        "batch_normalization": "batch_norm batchnorm batchnorm1d batchnorm2d",
        "layer_normalization": "layer_norm layernorm",
        "group_normalization": "group_norm groupnorm",
        "instance_normalization": "instance_norm instancenorm2d",
        "embed": "embedding",
        "max_pooling": "max_pool1d max_pool2d max_pool3d maxpool2d",
        "average_pooling": "avg_pool1d avg_pool2d avg_pool3d avgpool2d",
        "global_average_pooling": "adaptive_avg_pool2d adaptiveavgpool2d",
        "softmax_cross_entropy": "cross_entropy crossentropyloss sparse_categorical_crossentropy",
        "sigmoid_cross_entropy": "binary_cross_entropy_with_logits bcewithlogitsloss",
        "binary_cross_entropy": "bceloss bce",
        "squared_error": "mse mse_loss mseloss",
        "absolute_error": "l1_loss l1loss mae",
        "huber_loss": "smooth_l1_loss",
        "concatenate": "cat concat",
        "transpose": "permute swapaxes",
        "reshape": "view flatten squeeze unsqueeze expand_dims",
        "clip_by_value": "clamp clip",
        "interpolate": "upsample resize",
        "batch_matmul": "matmul mm bmm",
        "constant": "zeros ones full",
        "max min": "argmax argmin amax",
        "broadcast": "expand",
        "multi_head_attention": "scaled_dot_product_attention multiheadattention",
        "alpha eta": "lr",
        "alpha lr eta": "learning_rate",
        "beta1": "betas",
        "wd": "weight_decay",
        "kernel": "kernel_size ksize",
        "pad": "padding",
        "group": "groups",
        "outmaps n_outmaps": "out_channels out_features filters units",
        "n_inputs": "num_embeddings",
        "n_features": "embedding_dim",
        "with_bias": "bias use_bias",
        "axis axes": "dim",
        "keepdims": "keepdim",
        "val": "value scalar",
        "no_grad": "inference_mode",
        "Variable": "tensor",
        "NdArray": "array ndarray",
    }.items()
    for name in names.split()
}


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """ ": did you mean affine?", or nothing."""
    from difflib import get_close_matches  # not needed by a program without errors

    known = {n.lower(): n for n in reversed(list(names)) if not n.startswith("_")}
    key = name.lower()
    found = [n for n in ELSEWHERE.get(key, ()) if n.lower() in known]
    if not found:
        found = [known[n] for n in (key, *get_close_matches(key, known, 1)) if n in known]
    return f": did you mean {found[0]}?" if found else ""


def module_getattr(module: str, names: Callable[[], Iterable[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a module that suggests a name for one that it does not have."""

    def missing(name: str) -> Any:
        hint = "" if name.startswith("_") else did_you_mean(name, names())
        raise AttributeError(f"module {module!r} has no attribute {name!r}{hint}")

    return missing
