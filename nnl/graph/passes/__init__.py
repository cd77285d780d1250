# SPDX-License-Identifier: Apache-2.0
"""Rewrites of a program before it is laid out; one rule set per file.

A pass takes a Program and changes it so that it still runs and gives the same values, up to
rounding. `verify` says whether it can run; tests call it after every pass.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from nnl.core.arguments.suggest import did_you_mean
from nnl.ext.library import Library
from nnl.graph.passes.fusing.attention import fuse_attention
from nnl.graph.passes.fusing.attention_packed import pack_attention
from nnl.graph.passes.fusing.bias import fuse_biases, fuse_product_bias
from nnl.graph.passes.fusing.convolution import fold_padding, fuse_bias_gradient
from nnl.graph.passes.fusing.elementwise import fuse_elementwise
from nnl.graph.passes.fusing.epilogue import fuse_epilogues, fuse_row_gradients
from nnl.graph.passes.fusing.normalization import fuse_normalization
from nnl.graph.passes.fusing.pooling import fuse_pooling
from nnl.graph.passes.fusing.quantized import lower_quantized
from nnl.graph.passes.fusing.reduction import fuse_reductions
from nnl.graph.passes.fusing.softmax import fuse_softmax
from nnl.graph.passes.fusing.updates import join_updates
from nnl.graph.passes.layout.kernels import choose_kernels
from nnl.graph.passes.layout.prepared_weights import prepare_weights
from nnl.graph.passes.layout.recomputed_inputs import forget_normalized
from nnl.graph.passes.layout.tiles import tile_weights
from nnl.graph.passes.layout.weight_copies import copy_weights
from nnl.graph.passes.rewriting.common_steps import merge_common
from nnl.graph.passes.rewriting.constants import fold_constants
from nnl.graph.passes.rewriting.decompose import decompose_unknown, take_apart
from nnl.graph.passes.rewriting.inner_programs import give_kernels
from nnl.graph.passes.rewriting.narrow_weights import narrow_weights
from nnl.graph.passes.rewriting.prune import prune
from nnl.graph.program.program import Program, Step, verify

Pass = Callable[[Program, Any], None]


def run_inside(program: Program, lib: Library) -> None:
    """Let the library run programs inside steps, where it has kernels for all their steps."""
    give_kernels(program, lib, portable_inside)


VERIFY = bool(os.environ.get("NNL_VERIFY"))  # check the program after every pass, to find bugs

PASSES: list[Pass] = [
    prune,
    take_apart,
    fold_constants,
    merge_common,
    narrow_weights,
    fold_padding,
    fuse_attention,
    pack_attention,
    fuse_softmax,
    fuse_biases,
    fuse_epilogues,
    fuse_row_gradients,
    lower_quantized,
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
    run_inside,
]

PORTABLE = PASSES[: PASSES.index(prepare_weights)]  # what they give runs on any machine

# They say in which order and type arrays lie from run to run, which programs inside steps cannot.
LASTING: list[Pass] = [tile_weights, copy_weights, prepare_weights]


def optimise(program: Program, lib: Library, begin: int = 0) -> None:
    """Run all passes in order.

    Args:
        lib: The native library, which tells what it has kernels for.
        begin: Number of the first pass; those before have run.
    """
    _run(PASSES[begin:], program, lib)


def only(program: Program, lib: Library | None, names: Sequence[str]) -> None:
    """Run some passes, in the order that all run in, to look at what they do.

    Raises:
        ValueError: There is no pass of a name.
    """
    known = {p.__name__: p for p in PASSES}
    for name in names:
        if name not in known:
            raise ValueError(f"passes: there is none called {name!r}{did_you_mean(name, known)}")
    if lib is not None:
        _run([p for name, p in known.items() if name in names], program, lib)


def _run(passes: Sequence[Pass], program: Program, lib: Library) -> None:
    known: dict[Step, tuple[Any, bool]] = {}
    for rewrite in passes:
        rewrite(program, lib)
        if VERIFY:
            verify(program, known)


def optimise_loaded(program: Program, lib: Library) -> None:
    """Run the passes that remain for a program from a file, which has been through the others."""
    _run(PASSES[PASSES.index(choose_kernels) :], program, lib)


def portable(program: Program, lib: Library) -> None:
    """Run the passes whose result does not depend on the machine: for a program that is saved."""
    _run(PORTABLE, program, lib)
    program.fused = True


def optimise_inside(program: Program, lib: Library) -> None:
    """Run the passes for a program inside a step; those that remain, if it was saved."""
    begin = PASSES.index(choose_kernels) if program.fused else 0
    _run([p for p in PASSES[begin:] if p not in LASTING], program, lib)
    program.fused = True


def portable_inside(program: Program, lib: Library) -> None:
    """What `portable` and decompose_unknown do, for a program inside a step."""
    begin = PASSES.index(choose_kernels) if program.fused else 0
    _run([p for p in PORTABLE[begin:] if p not in LASTING], program, lib)
    decompose_unknown(program, lib)
    program.fused = True
