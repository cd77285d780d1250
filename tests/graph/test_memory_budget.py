# SPDX-License-Identifier: Apache-2.0
"""Recomputation as a memory budget asks for it."""

import logging

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.graph.execution.session import session_of


def loss(x):
    h = x
    for i in range(6):
        with nn.parameter_scope(f"layer{i}"):
            h = F.swish(PF.affine(h, 64))
    return F.mean(h)


def train(budget=None):
    """(gradients, bytes of the plan) of one step."""
    x = nn.Variable.from_numpy_array(np.random.default_rng(0).normal(size=(256, 64)))
    y = loss(x)
    for p in nn.get_parameters().values():
        p.grad.zero()
    if budget is None:
        y.forward(clear_no_need_grad=True)
    else:
        with nn.memory_budget(budget):
            y.forward(clear_no_need_grad=True)
    y.backward(clear_buffer=True)
    grads = {k: p.g.copy() for k, p in nn.get_parameters().items()}
    return grads, session_of([y]).plans["train"].plan.nbytes


def test_a_budget_makes_the_plan_smaller_and_changes_no_gradient():
    want, size = train()
    budget = int(0.75 * size)
    got, smaller = train(budget)
    assert smaller <= budget
    for name, g in want.items():
        np.testing.assert_allclose(got[name], g, rtol=1e-5, atol=1e-7)


def test_a_budget_that_is_large_enough_changes_nothing():
    _, size = train()
    assert train(size)[1] == size


def test_a_budget_out_of_reach_is_said(caplog):
    with caplog.at_level(logging.WARNING, "nnl"):
        want, _ = train()
        got, _ = train(1)
    assert "which is more than 1; it cannot be made smaller" in caplog.text
    for name, g in want.items():
        np.testing.assert_allclose(got[name], g, rtol=1e-5, atol=1e-7)


def test_a_negative_budget_is_an_error():
    with pytest.raises(ValueError, match="memory_budget: nbytes is -1, wanted a number >= 0"):
        with nn.memory_budget(-1):
            pass
