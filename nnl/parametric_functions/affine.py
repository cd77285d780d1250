# SPDX-License-Identifier: Apache-2.0
"""affine, svd_affine and embed: products with a weight matrix that is a parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from nnl import functions as F
from nnl.core.arguments.annotations import Input
from nnl.core.arrays.spec import ShapeError
from nnl.core.parameters.parameter import LOOKUP, get_parameter, get_parameter_or_create
from nnl.parametric_functions.api import parametric_function_api
from nnl.parametric_functions.initializer import ZERO, UniformInitializer, glorot

__all__ = ["affine", "svd_affine", "embed"]


@lru_cache(4096)
def _sizes(
    shape: tuple[int, ...], n_outmaps: int | tuple[int, ...], base_axis: int, name: str
) -> tuple[int, tuple[int, ...], int]:
    """(elements of one sample, sizes of the output, base_axis from the front)."""
    n = len(shape)
    if not -n <= base_axis < n:
        hint = f": {name} takes the size of the output alone, that of x is known"
        raise ShapeError(
            f"{name}: base_axis {base_axis} is outside [{-n}, {n}) for the shape {shape}"
            + hint * (base_axis >= n)
        )
    base_axis %= n
    outmaps = n_outmaps if isinstance(n_outmaps, tuple) else (n_outmaps,)
    return prod(shape[base_axis:]), outmaps, base_axis


@parametric_function_api(
    "affine",
    [
        ("W", "Weight", "(elements of a sample, *n_outmaps)", True),
        ("b", "Bias", "n_outmaps", True),
    ],
)
def affine(
    inp: Input,
    n_outmaps: int | Sequence[int],
    base_axis: int = 1,
    w_init: Any = None,
    b_init: Any = None,
    fix_parameters: bool = False,
    rng: np.random.RandomState | None = None,
    with_bias: bool = True,
    apply_w: Callable[[Any], Any] | None = None,
    apply_b: Callable[[Any], Any] | None = None,
) -> Any:
    r"""Fully connected layer: $y = x W + b$.

    Args:
        inp: (samples..., elements...).
        n_outmaps: Size of the output, or several.
        base_axis: Axes from here on belong to one sample; negative counts from the end, so -1 makes
            a layer of the last axis.
        w_init, b_init: Initializer or array. Uniform with Glorot's limits, and 0, if left out.
        fix_parameters: Compute no gradients for the parameters in this call.
        rng: Generator of the default w_init; the framework's if left out.
        with_bias: Whether there is a b.
        apply_w, apply_b: Called with the parameter; what it returns is used instead.
    Returns:
        (samples..., *n_outmaps).
    Raises:
        ShapeError: base_axis is out of range, or a parameter exists with another shape.
    Example:
        >>> x = array(np.ones((2, 4)))
        >>> PF.affine(x, 3, name="ex").shape
        (2, 3)
    """
    inmaps, outmaps, base_axis = _sizes(inp.shape, n_outmaps, base_axis, "affine")
    need, shape = not fix_parameters, (inmaps, *outmaps)
    w = LOOKUP.handle("W", shape, True, need)  # there already, by far the most often
    if w is None:
        w_init = glorot(inmaps, prod(outmaps), rng=rng) if w_init is None else w_init
        w = get_parameter_or_create("W", shape, w_init, True, need)
    w = w if apply_w is None else apply_w(w)
    b = None
    if with_bias:
        b = LOOKUP.handle("b", outmaps, True, need)
        if b is None:
            b_init = ZERO if b_init is None else b_init
            b = get_parameter_or_create("b", outmaps, b_init, True, need)
        b = b if apply_b is None else apply_b(b)
    return F.affine(inp, w, b, base_axis=base_axis)


@parametric_function_api(
    "svd_affine",
    [
        ("U", "Left factor of the weight", "(elements of a sample, r)", True),
        ("V", "Right factor of the weight", "(r, *n_outmaps)", True),
        ("b", "Bias", "n_outmaps", True),
    ],
)
def svd_affine(
    inp: Input,
    n_outmaps: int | Sequence[int],
    r: int,
    base_axis: int = 1,
    uv_init: Any = None,
    b_init: Any = None,
    fix_parameters: bool = False,
    rng: np.random.RandomState | None = None,
    with_bias: bool = True,
) -> Any:
    r"""Fully connected layer with a weight of rank r: $y = (x U) V + b$.

    U and V start as the best factors of rank r of one whole weight: U holds its left singular
    vectors times the singular values, V its right singular vectors.

    Args:
        inp: (samples..., elements...).
        n_outmaps: Size of the output, or several.
        r: Rank.
        base_axis: Axes from here on belong to one sample.
        uv_init: Initializer or array of the whole weight (elements, *n_outmaps). Uniform with
            Glorot's limits if left out.
        b_init: Initializer or array; 0 if left out.
        fix_parameters: Compute no gradients for the parameters in this call.
        rng: Generator of the default uv_init; the framework's if left out.
        with_bias: Whether there is a b.
    Returns:
        (samples..., *n_outmaps).
    Raises:
        ValueError: r is not positive. ShapeError: r exceeds the rank of the weight.
    Source: Xue, Li and Gong, Restructuring of Deep Neural Network Acoustic Models with Singular
        Value Decomposition, Interspeech 2013.
    Example:
        >>> x = array(np.ones((2, 4)))
        >>> PF.svd_affine(x, 3, r=2, name="ex").shape
        (2, 3)
    """
    if r < 1:
        raise ValueError(f"svd_affine: r is {r}, wanted at least 1")
    inmaps, outmaps, base_axis = _sizes(inp.shape, n_outmaps, base_axis, "svd_affine")
    n_out = prod(outmaps)
    if r > min(inmaps, n_out):
        raise ShapeError(
            f"svd_affine: r is {r}, wanted at most {min(inmaps, n_out)} for {inmaps} x {n_out}"
        )
    need = not fix_parameters
    if uv_init is None:
        uv_init = glorot(inmaps, n_out, rng=rng)
    # drawn even if U and V exist: so does NNabla, and later draws are to be the same
    whole = uv_init((inmaps, *outmaps)) if callable(uv_init) else np.asarray(uv_init)
    u_init = v_init = None
    if get_parameter("U") is None or get_parameter("V") is None:
        left, values, right = np.linalg.svd(whole.reshape(inmaps, n_out), full_matrices=False)
        u_init, v_init = left[:, :r] * values[:r], right[:r].reshape(r, *outmaps)
    u = get_parameter_or_create("U", (inmaps, r), u_init, True, need)
    v = get_parameter_or_create("V", (r, *outmaps), v_init, True, need)
    b = None
    if with_bias:
        b_init = ZERO if b_init is None else b_init
        b = get_parameter_or_create("b", outmaps, b_init, True, need)
    return F.affine(F.affine(inp, u, base_axis=base_axis), v, b, base_axis=base_axis)


@parametric_function_api("embed", [("W", "Rows to choose from", "(n_inputs, n_features)", True)])
def embed(
    inp: Input,
    n_inputs: int,
    n_features: int,
    initializer: Any = None,
    fix_parameters: bool = False,
    apply_w: Callable[[Any], Any] | None = None,
) -> Any:
    r"""Replace every integer by the row of a table with this index: $y_i = W_{x_i}$.

    Args:
        inp: Integers in [0, n_inputs), any shape.
        n_inputs: Number of rows.
        n_features: Length of a row.
        initializer: Initializer or array. Uniform in $[-\sqrt 3, \sqrt 3)$, so of variance 1, if
            left out.
        fix_parameters: Compute no gradient for the parameter in this call.
        apply_w: Called with the parameter; what it returns is used instead.
    Returns:
        (*inp.shape, n_features).
    Source: Bengio et al., A Neural Probabilistic Language Model, JMLR 3, 2003.
    Example:
        >>> PF.embed(array([[7, 1, 7]], int), n_inputs=10, n_features=4, name="ex").shape
        (1, 3, 4)
    """
    if initializer is None:
        initializer = UniformInitializer((-np.sqrt(3.0), np.sqrt(3.0)))
    w = get_parameter_or_create("W", (n_inputs, n_features), initializer, True, not fix_parameters)
    return F.embed(inp, w if apply_w is None else apply_w(w))
