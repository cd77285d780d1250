# SPDX-License-Identifier: Apache-2.0
"""Kernels in CUDA C, and the setups that choose them. Not yet run on a GPU.

Every kernel is compiled by NVRTC for sm_90 and by g++ in the tests, which run it on the host,
compare it with numpy and watch its accesses to memory; what that cannot show is speed.
"""

from nnl.ext.cuda.kernels import (
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
