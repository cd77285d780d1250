# SPDX-License-Identifier: Apache-2.0
"""Layers that backward computes again: the same bits, in less memory."""

from __future__ import annotations

import gc
from functools import partial

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl import models
from nnl.graph.execution.session import Session
from nnl.graph.recording.recording import Compiled

LLAMA = {
    "model_type": "llama", "vocab_size": 60, "hidden_size": 64, "intermediate_size": 160,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "vocab_size": 60, "n_embd": 64, "n_head": 4, "n_positions": 64}
IDS = np.random.default_rng(0).integers(0, 60, (2, 49))


def drawn(sizes, layers):
    made = models.from_config({**sizes, "num_hidden_layers": layers, "n_layer": layers})
    rng = np.random.default_rng(0)
    for path, v in made.parameters().items():
        v.d = (path.endswith("gamma") + rng.normal(size=v.shape) * 0.1).astype(np.float32)
    return made


def loss_with(made, labels, x):
    return made.loss(x, labels)


def trained(loss_of, parameters, compiled):
    """(parameters after three steps, bytes of the plan)."""
    solver = S.Momentum(0.1)
    solver.set_parameters(parameters)
    x = nn.Variable.from_numpy_array(IDS[:, :-1])
    kind = Compiled if compiled else Session
    others = [o for o in gc.get_objects() if type(o) is kind]
    if compiled:

        @nn.compile
        def step(x):
            loss = loss_of(x)
            loss.forward()
            solver.zero_grad()
            loss.backward()
            solver.update()
            return loss

        for _ in range(3):
            step(x)
    else:
        loss = loss_of(x)
        for _ in range(3):
            loss.forward(clear_no_need_grad=True)
            solver.zero_grad()
            loss.backward(clear_buffer=True)
            solver.update()
    own = [o for o in gc.get_objects() if type(o) is kind and all(o is not p for p in others)]
    plans = [o.plan if compiled else o.plans["train"].plan for o in own]
    found = {k: v.d.copy() for k, v in parameters.items()}, max(plan.nbytes for plan in plans)
    del plans, own, others
    gc.collect()
    return found


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("context", ["numpy", "cpu", "cpu:bfloat16"])
@pytest.mark.parametrize("sizes", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_layers_computed_again_give_the_same_bits_in_less_memory(sizes, context, compiled):
    found = {}
    labels = nn.Variable.from_numpy_array(IDS[:, 1:])
    with nn.context_scope(nn.Context([context])):
        for on in (False, True):
            for layers in (2, 4):
                nn.clear_parameters()
                made = drawn(sizes, layers)
                made.checkpointing(on)
                loss_of = partial(loss_with, made, labels)
                found[on, layers] = trained(loss_of, made.parameters(grad_only=True), compiled)
    for layers in (2, 4):
        for path, want in found[False, layers][0].items():
            np.testing.assert_array_equal(found[True, layers][0][path], want)
    grows = [found[on, 4][1] - found[on, 2][1] for on in (False, True)]
    assert grows[1] < 0.5 * grows[0]  # of which a part is gradients


@pytest.mark.parametrize("compiled", [False, True])
def test_dropout_is_drawn_once(compiled):
    found = []
    for on in (False, True):
        nn.clear_parameters()
        nn.seed(3)

        def loss_of(x, on=on):
            with models.checkpointing(on):
                y = models.gpt2(x, 60, 32, 2, 4, 64, dropout=0.2)
            labels = nn.Variable.from_numpy_array(IDS[:, 1:].reshape(-1, 1))
            return F.mean(F.softmax_cross_entropy(F.reshape(y, (-1, 60)), labels))

        loss_of(nn.Variable.from_numpy_array(IDS[:, :-1]))  # makes the parameters
        for v in nn.get_parameters().values():
            v.d = np.random.default_rng(v.size).normal(size=v.shape).astype(np.float32) * 0.1
        nn.seed(3)
        found.append(trained(loss_of, nn.get_parameters(), compiled))
    for path, want in found[0][0].items():
        np.testing.assert_array_equal(found[1][0][path], want)
    assert found[1][1] < found[0][1]


def test_adapters_over_few_bits_are_computed_again_too():
    found = []
    for on in (False, True):
        nn.clear_parameters()
        made = drawn({**LLAMA, "intermediate_size": 128}, 3)
        made.quantize(4)
        for i, v in enumerate(made.lora(4, targets="all-linear").values()):
            v.d = (np.random.default_rng(i).normal(size=v.shape) * 0.1).astype(np.float32)
        made.checkpointing(on)
        labels = nn.Variable.from_numpy_array(IDS[:, 1:])
        adapters = made.parameters(grad_only=True)
        found.append(trained(partial(loss_with, made, labels), adapters, True))
    for path, want in found[0][0].items():
        np.testing.assert_array_equal(found[1][0][path], want)
    assert found[1][1] < 0.6 * found[0][1]
