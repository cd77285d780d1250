# SPDX-License-Identifier: Apache-2.0
"""Tooltips show plain text: formulas are readable there without being set."""

import re

import pytest

from nnl.console.documents import optimizers
from nnl.console.palette.formulas import plain
from nnl.console.palette.palette import layers


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (r"$\frac{1}{K} \sum_{k=1}^{K} x_{i s + k - p}$", "1 / K Σ_(k=1)^K x_(i s + k - p)"),
        (r"$\frac{a + b}{2}$ of $x_0^2$", "(a + b) / 2 of x₀²"),
        (r"$y = x (1 + \tanh(\sqrt{2/\pi}\,x)) / 2$", "y = x (1 + tanh(√(2/π) x)) / 2"),
        (r"$-\log \mathrm{softmax}(x)_t$", "-log softmax(x)_t"),
        (r"$[\,|x_0| = \infty\,]$, $\{1, \ldots\}$", "[|x₀| = ∞], {1, …}"),
        (r"$e^{-x} \le 2^{-126}$", "e^(-x) ≤ 2⁻¹²⁶"),
        ("as `nnl.functions.relu`, 3 % of x_0", "as nnl.functions.relu, 3 % of x_0"),
        (r"$\unknown{x}$ and $a_{", "unknownx and a_()"),
        (r"$\frac$", "() / ()"),
    ],
)  # fmt: skip
def test_formulas_become_text(formula, text):
    assert plain(formula) == text


def test_nothing_of_the_palette_shows_how_formulas_are_written():
    texts = [layer.doc for layer in layers().values()]
    texts += [p.doc for layer in layers().values() for p in layer.properties]
    for solver in optimizers.schema()["solvers"]:
        texts += [solver["doc"], *(p["doc"] for p in solver["properties"])]
    assert len(texts) > 1000
    raw = [text for text in texts if re.search(r"[\\$`]|[_^]\{|[_^]\(\)", text)]
    assert raw == []
