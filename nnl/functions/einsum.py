# SPDX-License-Identifier: Apache-2.0
"""Sums of products over named axes."""

from __future__ import annotations

import math
import string
from functools import lru_cache

import numpy as np

from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import ShapeError
from nnl.core.graph.node import Value
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS, Cost, Sample, op
from nnl.functions.reduction import reshape, stretched, sum_to

CATEGORY = "Special"

__all__ = ["einsum"]


@lru_cache(maxsize=256)
def parse(equation, ranks):
    """(letters of every operand, letters of the result), with letters in place of the dots.

    Raises:
        ValueError: The equation is not of the form described at `einsum`.
        ShapeError: It has another number of operands, or of axes of one.
    """
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    for term in [*terms, right]:
        bare = term.replace("...", "", 1)
        if not set(bare) <= set(string.ascii_letters):
            raise ValueError(
                f"einsum: equation {equation!r} has the term {term!r}, wanted letters and at most "
                "one '...'"
            )
    if len(terms) != len(ranks):
        raise ShapeError(
            f"einsum: equation {equation!r} has {len(terms)} operands, {len(ranks)} are given"
        )
    free = [c for c in string.ascii_letters if c not in text]
    hidden = [rank - len(t.replace("...", "")) for t, rank in zip(terms, ranks, strict=True)]
    for i, (term, n) in enumerate(zip(terms, hidden, strict=True)):
        if n < 0 or (n and "..." not in term):
            raise ShapeError(
                f"einsum: equation {equation!r} names {len(term.replace('...', ''))} axes of "
                f"x[{i}], which has rank {ranks[i]}"
            )
    most = max((n for t, n in zip(terms, hidden, strict=True) if "..." in t), default=0)
    if most > len(free):
        raise ShapeError(f"einsum: equation {equation!r} needs more letters than there are")
    dots = "".join(free[:most])
    full = [t.replace("...", dots[most - n :]) for t, n in zip(terms, hidden, strict=True)]
    if arrow:
        out = right.replace("...", dots)
    else:
        every = "".join(terms).replace(".", "")
        out = dots + "".join(sorted(c for c in set(every) if every.count(c) == 1))
    for c in out:
        if out.count(c) > 1 or not any(c in t for t in full):
            raise ValueError(
                f"einsum: equation {equation!r} has {c!r} in the result, wanted letters of "
                "operands, each once"
            )
    if most and not set(dots) <= set(out):
        raise ValueError(f"einsum: equation {equation!r} has no '...' in the result")
    return tuple(full), out


def sizes_of(equation, terms, shapes):
    """Size of every letter; sizes of 1 stretch."""
    sizes = {}
    for i, (term, shape) in enumerate(zip(terms, shapes, strict=True)):
        own = {}
        for c, n in zip(term, shape, strict=True):
            if own.setdefault(c, n) != n:
                raise ShapeError(
                    f"einsum: equation {equation!r} has the diagonal of axes of the sizes {own[c]} "
                    f"and {n} of x[{i}]"
                )
            m = sizes.setdefault(c, n)
            if m == 1:
                sizes[c] = n
            elif n not in (1, m):
                raise ShapeError(
                    f"einsum: equation {equation!r} has the size {m} for an axis and {n} for the "
                    f"same axis of x[{i}]"
                )
    return sizes


def identity(n, dtype):
    """The identity matrix as a constant."""
    nd = NdArray.from_numpy_array(np.eye(n, dtype=dtype))
    return Variable.of_edge(Value.leaf(nd), nd)


def diagonal(x, term):
    """x, and its letters, each once: where one stands twice, the elements on the diagonal."""
    for c in dict.fromkeys(term):
        while term.count(c) > 1:
            i, j = term.index(c), term.rindex(c)
            shape = [x.shape[i] if k in (i, j) else 1 for k in range(len(term))]
            x = OPS["mul2"](x, reshape(identity(x.shape[i], x.spec.dtype), shape))
            x, term = OPS["sum"](x, axes=(j,), keep_dims=False), term[:j] + term[j + 1 :]
    return x, term


def summed(x, term, needed):
    """x summed over the axes whose letters are not needed."""
    axes = tuple(i for i, c in enumerate(term) if c not in needed)
    x = OPS["sum"](x, axes=axes, keep_dims=False) if axes else x
    return x, "".join(c for c in term if c in needed)


def ordered(x, term, letters, sizes=None):
    """x with its axes in the order of the letters; where sizes are given, then in this shape."""
    order = tuple(term.index(c) for c in letters)
    x = x if order == tuple(range(len(order))) else OPS["transpose"](x, axes=order)
    return x if sizes is None else reshape(x, sizes)


def product(a, left, b, right, needed):
    """The product of two operands, summed over what they alone have and nobody else needs."""
    a, left = summed(a, left, needed | set(right))
    b, right = summed(b, right, needed | set(left))
    shape = {**dict(zip(right, b.shape, strict=True)), **dict(zip(left, a.shape, strict=True))}
    if any(shape[c] != n for c, n in zip(right, b.shape, strict=True)):  # a size of 1 stretches
        letters = left + "".join(c for c in right if c not in left)
        sizes = [dict(zip(t, x.shape, strict=True)) for t, x in ((left, a), (right, b))]
        a, b = (
            ordered(x, t, [c for c in letters if c in t], [own.get(c, 1) for c in letters])
            for x, t, own in ((a, left, sizes[0]), (b, right, sizes[1]))
        )
        return summed(OPS["mul2"](a, b), letters, needed)
    inner = [c for c in left if c in right and c not in needed]
    batch = [c for c in left if c in right and c in needed]
    rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]
    n, k, m = (math.prod(shape[c] for c in part) for part in (rows, inner, columns))
    lead = [shape[c] for c in batch]
    y = OPS["batch_matmul"](
        ordered(a, left, batch + rows + inner, (*lead, n, k)),
        ordered(b, right, batch + inner + columns, (*lead, k, m)),
    )
    letters = "".join(batch + rows + columns)
    return reshape(y, tuple(shape[c] for c in letters)), letters


@op("einsum", nnp="Einsum")
class einsum:
    r"""Sum of products over named axes, in Einstein's notation.

    "ij,jk->ik" is a matrix product: $y_{ik} = \sum_j x^0_{ij} x^1_{jk}$. Each operand has one
    letter for each axis; axes with the same letter run together, and those not in the result are
    summed over. "..." stands for the axes that have no letter, aligned from the last one, where
    sizes of 1 stretch. Without an arrow the result has the axes of the dots and then, in the order
    of the alphabet, all letters that occur once.

    Args:
        x: Any number of arrays, at least one.
        equation: By keyword; terms of letters separated by commas, optionally "->" and the result.
    Raises:
        ValueError: The equation is not of this form.
        ShapeError: It does not fit the number of arrays or their ranks, or sizes differ.
    Example:
        >>> F.einsum(array([[1, 2], [3, 4]]), array([1, 10]), equation="ij,j->i").d
        array([21., 43.], dtype=float32)
    """

    equation: str = ""

    def infer(self, *x):
        if not x:
            raise TypeError("einsum: no array is given, wanted at least one")
        terms, out = parse(self.equation, tuple(len(s.shape) for s in x))
        sizes = sizes_of(self.equation, terms, [s.shape for s in x])
        return x[0].with_shape(tuple(sizes[c] for c in out))

    def forward(self, xp, *x):
        terms, out = parse(self.equation, tuple(a.ndim for a in x))
        y = xp.einsum(f"{','.join(terms)}->{out}", *x, optimize=len(x) > 1)
        # numpy gives views of the operands where nothing is summed
        return xp.array(y, dtype=x[0].dtype, order="C")

    def portable(self, *x):
        terms, out = parse(self.equation, tuple(len(a.shape) for a in x))
        pairs = [diagonal(a, term) for a, term in zip(x, terms, strict=True)]
        y, letters = pairs[0]
        for k, (b, term) in enumerate(pairs[1:], start=2):
            needed = {*out, *(c for _, t in pairs[k:] for c in t)}
            y, letters = product(y, letters, b, term, needed)
        y, letters = summed(y, letters, set(out))
        return OPS["identity"](ordered(y, letters, out))

    def vjp(self, gy, *, x, need):
        terms, out = parse(self.equation, tuple(len(a.shape) for a in x))
        return tuple(self.gradient(gy, x, terms, out, i) if n else None for i, n in enumerate(need))

    def gradient(self, gy, x, terms, out, i):
        """The sum of products of gy with all other operands, over what is not an axis of x[i]."""
        sizes = sizes_of(self.equation, terms, [a.shape for a in x])
        others = [j for j in range(len(x)) if j != i]
        inputs, letters = [gy, *(x[j] for j in others)], [out, *(terms[j] for j in others)]
        free = [c for c in string.ascii_letters if not any(c in t for t in (*terms, out))]
        wanted = ""
        for c in terms[i]:
            if c in wanted:  # a diagonal: other elements get no gradient
                other = free.pop()
                inputs.append(identity(sizes[c], gy.spec.dtype))
                letters.append(c + other)
                sizes[other] = sizes[c]
                c = other
            wanted += c
        # an axis that only x[i] has was summed over
        known = [c for c in wanted if any(c in t for t in letters)]
        g = einsum(*inputs, equation=f"{','.join(letters)}->{''.join(known)}")
        full = tuple(sizes[c] for c in wanted)
        if len(known) < len(wanted):
            g = reshape(g, tuple(sizes[c] if c in known else 1 for c in wanted))
        if g.shape != full:
            g = stretched(g, full)
        return g if full == x[i].shape else sum_to(g, x[i].shape)

    def cost(self, *x):
        terms, _ = parse(self.equation, tuple(len(s.shape) for s in x))
        sizes = sizes_of(self.equation, terms, [s.shape for s in x])
        y = self.infer(*x)
        return Cost(len(x) * math.prod(sizes.values()), sum(s.nbytes for s in x) + y.nbytes)

    def samples(rng):
        a, b, c = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 4, 5)), rng.normal(size=(3, 5))
        yield Sample(a, b, equation="bij,bjk->bik")
        yield Sample(a, b, c, equation="bij, bjk, ik -> b")
        yield Sample(a, b, equation="...ij,...jk->k...i")
        yield Sample(a, b, equation="bij,bjk")
        yield Sample(a, equation="bij->jb")
        yield Sample(a, equation="bij->i")
        yield Sample(rng.normal(size=(2, 3, 3)), equation="bii->b")
        yield Sample(rng.normal(size=(2, 3, 3)), c, equation="bii,ik->ki")
        yield Sample(a, equation="...->...")
        yield Sample(a, a, equation="bij,bij->")
