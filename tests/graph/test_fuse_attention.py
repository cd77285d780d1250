# SPDX-License-Identifier: Apache-2.0
"""Attention as one step: which graphs become one, with which values."""

from dataclasses import replace

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.ext import native
from nnl.graph.execution.session import session_of
from nnl.graph.passes.rewriting import constants
from tests.graph.fusion import leaf, numbers, passes_are_verified, steps_of  # noqa: F401

pytestmark = pytest.mark.usefixtures("passes_are_verified")
B, H, T, D = 2, 3, 17, 8


@pytest.fixture(autouse=True)
def _any_size(monkeypatch):
    if native.library() is not None:
        traits = replace(native.TRAITS, least_attention_bytes=0)
        monkeypatch.setattr(native.library(), "traits", traits)


def parts(shape=(B, H, T, D)):
    return [leaf(*shape, seed=i) for i in range(3)]


def composed(mask=None, scale=D**-0.5, weights=lambda p: p, transposed=False):
    def build():
        q, k, v = parts()
        s = F.batch_matmul(q, F.transpose(k, (0, 1, 3, 2)) * 1.5 if transposed else k,
                           transpose_b=not transposed)  # fmt: skip
        s = s * scale if scale else s
        leaves = [q, k, v]
        if mask is not None:
            m = leaf(*mask, seed=4, need_grad=False)
            s = m + s
        return F.batch_matmul(weights(F.softmax(s, axis=3)), v), leaves

    return build


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("mask", [None, (1, 1, T, T), (B, 1, 1, T), (B, H, T, T), (1, 1, 1, 1)])
def test_scores_with_scale_and_mask_become_one_step(mask, half):
    steps = steps_of(composed(mask), half=half)
    assert (steps["attention"], steps["attention_backward"]) == (1, 1)
    assert not {"softmax", "softmax_backward", "batch_matmul"} & steps.keys()
    steps = steps_of(composed(mask), train=False, half=half)
    assert steps["attention"] == 1 and not {"softmax", "batch_matmul"} & steps.keys()


@pytest.mark.parametrize("transposed", [False, True])
def test_keys_may_lie_transposed_and_the_scale_may_be_missing(transposed):
    steps = steps_of(composed(scale=None, transposed=transposed))
    assert (steps["attention"], steps["attention_backward"]) == (1, 1)


def test_queries_and_keys_may_differ_in_number():
    def build():
        q, k, v = leaf(B, 5, D), leaf(B, T, D, seed=1), leaf(B, T, 3, seed=2)
        return F.batch_matmul(F.softmax(F.batch_matmul(q, k, transpose_b=True)), v), [q, k, v]

    steps = steps_of(build)
    assert (steps["attention"], steps["attention_backward"]) == (1, 1)


def test_one_array_may_be_query_key_and_value():
    def build():
        x = leaf(B, T, D)
        return F.batch_matmul(F.softmax(F.batch_matmul(x, x, transpose_b=True)), x), [x]

    assert steps_of(build)["attention_backward"] == 1


def test_gradients_that_nobody_asked_for_prevent_nothing():
    def build():
        q, k, v = leaf(B, T, D), *[leaf(B, T, D, seed=i, need_grad=False) for i in (1, 2)]
        return F.batch_matmul(F.softmax(F.batch_matmul(q, k, transpose_b=True)), v), [q]

    steps = steps_of(build)
    assert (steps["attention"], steps["attention_backward"]) == (1, 1)


def attributes_of(build):
    """Of the attention in the plan, for inference."""
    with nn.context_scope(nn.Context(["cpu:float"])):
        y, _ = build()
        y.forward(clear_buffer=True)
    steps = session_of([y]).plans["infer"].plan.steps
    (found,) = [s for s in steps if s.op == "attention"]
    assert not {"trilu", "constant"} & {s.op for s in steps} or len(found.ins) > 3
    return found.attrs.get("causal", False), len(found.ins)


@pytest.mark.parametrize("most", [0, 1 << 20])  # bytes of constants that are computed once
@pytest.mark.parametrize(
    ("masks", "want"),
    [
        ([dict(val=-1e9)], (True, 3)),
        ([dict(val=-np.inf)], (True, 3)),
        ([dict(val=-1e9), dict(val=-1e9)], (True, 3)),
        ([dict(val=-1e9), None], (True, 4)),
        ([dict(val=-1e4)], (False, 4)),
        ([dict(val=-1e9, k=0)], (False, 4)),
        ([dict(val=-1e9, upper=False)], (False, 4)),
        ([dict(val=-1e9, rows=1)], (False, 4)),
    ],
)
def test_a_mask_of_what_comes_later_is_an_attribute(masks, want, most, monkeypatch):
    monkeypatch.setattr(constants, "MOST_BYTES", most)

    def mask(val, k=1, upper=True, rows=T):
        return F.trilu(F.constant(val, (1, 1, rows, T)), k=k, upper=upper)

    def build():
        q, k, v = parts()
        s = F.batch_matmul(q, k, transpose_b=True) * 0.3
        for m in masks:
            s = s + (leaf(B, 1, 1, T, need_grad=False) if m is None else mask(**m))
        return F.batch_matmul(F.softmax(s, axis=3), v), [q, k, v]

    if not {"k", "upper"} & masks[0].keys():  # there a query sees nothing
        steps = steps_of(build)
        assert (steps["attention"], steps["attention_backward"]) == (1, 1)
    assert attributes_of(build) == want


@pytest.mark.parametrize("additive", [False, True])
@pytest.mark.parametrize("padding", [False, True])
def test_multi_head_attention_is_fused(additive, padding):
    def build():
        x = leaf(T, B, 12)
        w = [leaf(12, 12, seed=i) for i in range(1, 5)]
        more = {}
        if additive:
            more["additive_mask"] = leaf(T, T, seed=7, need_grad=False)
        if padding:
            keep = np.zeros((B, T))
            keep[1, -4:] = 1
            more["key_padding_mask"] = nn.Variable.from_numpy_array(keep)
        return F.multi_head_attention(x, x, x, H, *w, **more)[0], [x, *w]

    steps = steps_of(build)
    assert (steps["attention"], steps["attention_backward"]) == (1, 1)


def not_fused(build, train=True):
    steps = steps_of(build, train)
    return not {"attention", "attention_backward"} & steps.keys()


def test_weights_or_scores_that_something_else_reads_prevent_it():
    def reading(which):
        def build():
            q, k, v = parts()
            s = F.batch_matmul(q, k, transpose_b=True) * 0.3
            p = F.softmax(s, axis=3)
            y = F.batch_matmul(p, v)
            return F.sum(y) + F.sum(F.tanh((s, p)[which])), [q, k, v]

        return build

    for which in (0, 1):
        for train in (False, True):
            assert not_fused(reading(which), train)


def test_persistent_weights_prevent_it():
    def keep(p):
        p.persistent = True
        return p

    assert not_fused(composed(weights=keep))
    assert not_fused(composed(weights=keep), train=False)


def test_a_mask_with_a_gradient_prevents_it():
    def build():
        q, k, v = parts()
        m = leaf(1, 1, T, T, seed=4)
        s = F.batch_matmul(q, k, transpose_b=True) + m
        return F.batch_matmul(F.softmax(s, axis=3), v), [q, k, v, m]

    assert not_fused(build)


def test_a_scaled_mask_and_another_axis_prevent_it():
    def scaled():
        q, k, v = parts()
        s = (F.batch_matmul(q, k, transpose_b=True) + leaf(1, 1, T, T, need_grad=False)) * 0.5
        return F.batch_matmul(F.softmax(s, axis=3), v), [q, k, v]

    def other_axis():
        q, k, v = parts()
        return F.batch_matmul(F.softmax(F.batch_matmul(q, k, transpose_b=True), axis=2), v), [q]

    assert not_fused(scaled)
    assert not_fused(other_axis)


def test_broadcast_values_prevent_it():
    def build():
        q, k, v = leaf(B, T, D), leaf(B, T, D, seed=1), leaf(1, T, D, seed=2)
        return F.batch_matmul(F.softmax(F.batch_matmul(q, k, transpose_b=True)), v), [q, k, v]

    assert not_fused(build)


def test_small_ones_are_left_to_products_of_whole_matrices(monkeypatch):
    monkeypatch.setattr(native.library(), "traits", native.TRAITS)
    assert not_fused(composed())
