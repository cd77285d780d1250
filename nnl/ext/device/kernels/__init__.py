# SPDX-License-Identifier: Apache-2.0
"""Kernels in the common part of CUDA C and OpenCL C, and the setups that choose them.

The tests run them through OpenCL and compare with numpy; NVRTC compiles them for sm_90. Not yet run
on a GPU.
"""

from nnl.ext.device.kernels import (
    copies,
    extrema,
    gradient,
    indexing,
    norm,
    norm_backward,
    pooling,
    programs,
    random,
    softmax,
    update,
)

__all__ = [
    "copies",
    "extrema",
    "gradient",
    "indexing",
    "norm",
    "norm_backward",
    "pooling",
    "programs",
    "random",
    "softmax",
    "update",
]
