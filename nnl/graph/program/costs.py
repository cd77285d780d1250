# SPDX-License-Identifier: Apache-2.0
"""What functions of a graph and steps of a program cost, by the definitions of their ops."""

from __future__ import annotations

from nnl.core.graph.node import Node
from nnl.core.ops.op import OPS, Cost
from nnl.graph.program.program import Program, Step

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


def cost(program: Program, step: Step) -> Cost:
    """What a step costs; of a fused one, what the steps that it stands for compute."""
    arrays = [program.slots[i].spec.nbytes for i in (*step.ins, *step.outs) if i]
    return Cost(sum(_flops(program, s) for s in _leaves_of(step)), sum(arrays))


def _leaves_of(step: Step) -> list[Step]:
    """The recorded steps that a fused one stands for."""
    return [p for part in step.replaced for p in _leaves_of(part)] if step.replaced else [step]


def _flops(program: Program, step: Step) -> int:
    if not hasattr(OPS[step.op].attrs_class, "cost"):
        return 0
    specs = [program.slots[i].spec if i else None for i in step.ins]
    found: Cost = OPS[step.op].attrs(**step.attrs).cost(*specs)
    return found.flops
