# SPDX-License-Identifier: Apache-2.0
"""einsum against PyTorch, and what it refuses."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F

V = nn.Variable.from_numpy_array


@pytest.mark.parametrize(
    "equation,shapes",
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("bij,bjk,ik->b", [(2, 3, 4), (2, 4, 5), (3, 5)]),
        ("ij,jk", [(2, 3), (3, 4)]),
        ("ba", [(2, 3)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]),
        ("i...,j...->ij...", [(2, 1, 3), (4, 5, 3)]),
        ("bii->b", [(2, 3, 3)]),
        ("iii->", [(3, 3, 3)]),
        ("ii,ij->j", [(3, 3), (3, 4)]),
        ("ijk->j", [(2, 3, 4)]),
        ("i,j->ij", [(2,), (3,)]),
    ],
)
def test_equals_pytorch(equation, shapes):
    torch = pytest.importorskip("torch")
    from tests.functions.against_torch import compare

    rng = np.random.default_rng(0)
    compare(
        lambda *x: F.einsum(*x, equation=equation),
        lambda *x: torch.einsum(equation, *x),
        *(rng.normal(size=s) for s in shapes),
    )


@pytest.mark.parametrize(
    "equation,shapes,text",
    [
        ("ij,jk->ik", [(2, 3)], "has 2 operands, 1 are given"),
        ("ij->i", [(2, 3, 4)], r"names 2 axes of x\[0\], which has rank 3"),
        ("...ij->i", [(2,)], r"names 2 axes of x\[0\], which has rank 1"),
        ("i1->i", [(2, 3)], "has the term 'i1', wanted letters and at most one"),
        ("ij->ik", [(2, 3)], "has 'k' in the result, wanted letters of operands, each once"),
        ("ij->ii", [(2, 3)], "has 'i' in the result"),
        ("...i->i", [(2, 3)], r"has no '...' in the result"),
        ("ij,jk->ik", [(2, 3), (4, 5)], r"has the size 3 for an axis and 4 for .* of x\[1\]"),
    ],
)
def test_errors_name_what_came_and_what_was_wanted(equation, shapes, text):
    with pytest.raises(ValueError, match=f"^einsum: equation .*{text}"):
        F.einsum(*(V(np.zeros(s)) for s in shapes), equation=equation)


def test_at_least_one_array_is_needed():
    with pytest.raises(TypeError, match="einsum: no array is given, wanted at least one"):
        F.einsum(equation="i->i")
