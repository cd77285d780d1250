# SPDX-License-Identifier: Apache-2.0
"""Rewrites of a program before it is laid out; one rule set per file.

A pass takes a Program and changes it so that it still runs and gives the same values, up to
rounding. `verify` says whether it can run; tests call it after every pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nnl.ext.library import Library
from nnl.graph.passes.attention import fuse_attention
from nnl.graph.passes.attention_packed import pack_attention
from nnl.graph.passes.constants import fold_constants
from nnl.graph.passes.convolution import fuse_bias_gradient
from nnl.graph.passes.copies import copy_weights
from nnl.graph.passes.elementwise import fuse_elementwise
from nnl.graph.passes.epilogue import fuse_epilogues
from nnl.graph.passes.forget import forget_normalized
from nnl.graph.passes.kernels import choose_kernels
from nnl.graph.passes.merge import merge_common
from nnl.graph.passes.normalization import fuse_normalization
from nnl.graph.passes.pooling import fuse_pooling
from nnl.graph.passes.prepare import prepare_weights
from nnl.graph.passes.product_bias import fuse_product_bias
from nnl.graph.passes.prune import prune
from nnl.graph.passes.reduction import fuse_reductions
from nnl.graph.passes.softmax import fuse_softmax
from nnl.graph.passes.tiles import tile_weights
from nnl.graph.passes.updates import join_updates
from nnl.graph.program import Program

Pass = Callable[[Program, Any], None]

PASSES: list[Pass] = [
    prune,
    fold_constants,
    merge_common,
    fuse_attention,
    pack_attention,
    fuse_softmax,
    fuse_epilogues,
    fuse_product_bias,
    fuse_bias_gradient,
    fuse_pooling,
    fuse_normalization,
    forget_normalized,
    fuse_elementwise,
    fuse_reductions,
    tile_weights,
    join_updates,
    copy_weights,
    choose_kernels,
    prepare_weights,
]


def optimise(program: Program, lib: Library) -> None:
    """Run all passes in order.

    Args:
        lib: The native library, which tells what it has kernels for.
    """
    for rewrite in PASSES:
        rewrite(program, lib)


def place(program: Program, lib: Library) -> None:
    """Run the passes that remain for a program from a file, which has been through the others."""
    for rewrite in PASSES[PASSES.index(choose_kernels) :]:
        rewrite(program, lib)


def portable(program: Program, lib: Library) -> None:
    """Run the passes whose result does not depend on the machine: for a program that is saved."""
    for rewrite in PASSES[: PASSES.index(prepare_weights)]:
        rewrite(program, lib)
    program.fused = True
