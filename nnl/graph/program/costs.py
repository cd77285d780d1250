# SPDX-License-Identifier: Apache-2.0
"""What the functions of a graph compute: operations, and multiply-adds as papers count them."""

from __future__ import annotations

from nnl.core.graph.node import Node

# Functions whose operations are sums of products. Only those are counted as multiply-adds; what
# the others cost is in the operations.
PRODUCTS = frozenset(
    """adaptive_separable_convolution affine batch_matmul binary_connect_affine
    binary_connect_convolution binary_weight_affine binary_weight_convolution convolution
    deconvolution deformable_convolution depthwise_convolution depthwise_deconvolution einsum
    fused_convolution gru inq_affine inq_convolution lstm patch_correlation rnn""".split()
)


def multiply_adds(node: Node) -> int:
    """Products of a function that are added up; 0 if it computes something else."""
    return (operations(node) + 1) // 2 if node.op.name in PRODUCTS else 0


def operations(node: Node) -> int:
    """Floating-point operations of a function."""
    cost = getattr(node.attrs, "cost", None)
    if cost is None:
        return 0
    return int(cost(*[v and v.current_spec for v in node.inputs]).flops)
