# SPDX-License-Identifier: Apache-2.0
"""Plans whose steps are graphs for cuDNN, on a device and a front end in host memory."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.settings.context import BACKENDS
from nnl.ext.cuda import TRAITS, setups
from nnl.ext.cuda.cudnn.run import Engine
from nnl.ext.cuda.cudnn.setups import ENGINES, add_to
from nnl.ext.device.library import DeviceLibrary, make_backend
from nnl.ext.device.registry import Registry
from nnl.graph.execution.session import session_of
from nnl.models.stack import Layer, Stack, Where, attention, scores_by
from tests.cuda.fake_cudnn import FakeFrontEnd
from tests.cuda.strict_device import KERNELS, StrictDevice
from tests.graph.fusion import check_appending

BATCH, LENGTH, HEADS, WIDTH = 2, 5, 3, 24
pytestmark = pytest.mark.usefixtures("host_compiler")


def with_cudnn() -> Registry:
    """The setups of CUDA kernels, and the graphs' before them, installed or not."""
    found = Registry()
    found.update({name: [*others] for name, others in setups().items()})
    found.abilities |= setups().abilities
    add_to(found)
    return found


def test_what_kernels_append_is_what_their_op_says() -> None:
    check_appending(DeviceLibrary(KERNELS, TRAITS, with_cudnn))


@pytest.fixture(scope="module")
def backend() -> Any:
    """One for all tests: what is bound in a context is bound to its device."""
    return make_backend("graphs", StrictDevice("strict:2"), TRAITS, with_cudnn)


@pytest.fixture
def context(monkeypatch: Any, backend: Any) -> Any:
    """(type configuration) -> the context."""
    engine = Engine(FakeFrontEnd(), "fake 9.0", None)
    monkeypatch.setattr(ENGINES, "current", lambda: engine)
    monkeypatch.setitem(BACKENDS, "graphs", lambda device_id: (backend,))
    return lambda types: nn.Context([f"graphs:{types}"])


def trained(ctx: Any, mask: Any) -> tuple[list[np.ndarray], Counter[str]]:
    """The result and the gradients of an attention layer, and the steps of its plan."""
    nn.clear_parameters()
    rng = np.random.default_rng(0)
    with nn.context_scope(ctx):
        x = nn.Variable((BATCH, LENGTH, WIDTH), need_grad=True)
        x.d = rng.normal(size=x.shape)
        m = None
        if mask == "padding":
            m = nn.Variable.from_numpy_array(
                np.where(np.arange(LENGTH) < 4, 0, -1e9)[None, None, None]
            )
        sizes = Stack(WIDTH, HEADS, WIDTH, (), joined=True, causal=mask == "causal")
        y = attention(x, sizes, Layer(), Where(mask=m), 0, "a")
        loss = F.sum(y * y)
        parameters = nn.get_parameters()
        for p in parameters.values():
            p.d = rng.normal(size=p.shape) * 0.3
        for _ in range(3):
            x.grad.zero()
            for p in parameters.values():
                p.grad.zero()
            loss.forward(clear_no_need_grad=True)
            loss.backward(clear_buffer=True)
        values = [loss.d, x.g, *(p.g for p in parameters.values())]
        steps = Counter(s.op for s in session_of([loss]).plans["train"].plan.steps)
    return [v.astype(np.float32) for v in values], steps


@pytest.mark.parametrize("mask", [None, "causal", "padding"])
@pytest.mark.parametrize("types", ["bfloat16", "half"])
def test_attention_reads_its_projection_without_copies(context: Any, types: str, mask: Any) -> None:
    got, steps = trained(context(types), mask)
    want, _ = trained(nn.Context(["numpy:float"]), mask)
    assert (steps["attention_packed"], steps["attention_packed_backward"]) == (1, 1)
    assert not {"transpose", "split", "stack", "attention", "trilu"} & steps.keys()
    for g, w in zip(got, want, strict=True):
        assert np.abs(g - w).max() <= 0.05 * max(1.0, float(np.abs(w).max()))


def test_attention_in_float32_is_not_packed(context: Any) -> None:
    got, steps = trained(context("float"), "causal")
    want, _ = trained(nn.Context(["numpy:float"]), "causal")
    assert "attention_packed" not in steps
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("seen", ["q", "y", "x", None])
def test_attention_is_not_packed_where_others_read_its_parts(context: Any, seen: Any) -> None:
    with nn.context_scope(context("bfloat16")):
        x, w = nn.Variable((BATCH, LENGTH, 4)), nn.Variable((4, 3, HEADS, 8))
        for a in (x, w):
            a.d = np.random.default_rng(0).normal(size=a.shape)
        t = F.transpose(F.affine(x, w, base_axis=2), (2, 0, 3, 1, 4))
        q, k, v = F.split(t, axis=0)
        p = F.softmax(F.batch_matmul(q, k, transpose_b=True), axis=3)
        y = F.batch_matmul(p, v)
        z = F.transpose(y, (0, 2, 1, 3))
        more = {"q": q, "y": y, "x": t, None: z}[seen]
        out = F.sum(z) + F.sum(more * more)
        out.forward(clear_buffer=True)
    steps = Counter(s.op for s in session_of([out]).plans["infer"].plan.steps)
    assert steps["attention_packed"] == (seen is None)
    assert steps["attention"] == (seen is not None)


@pytest.mark.parametrize("types", ["bfloat16", "float"])
@pytest.mark.parametrize("seen", [False, True])
def test_a_bias_joins_the_product_before_it(context: Any, types: str, seen: bool) -> None:
    """As the scores of BERT have it; not where the product without bias is wanted too."""

    def run(ctx: Any) -> tuple[list[np.ndarray], Counter[str]]:
        rng = np.random.default_rng(0)
        with nn.context_scope(ctx):
            x, table, bias = (
                nn.Variable(shape, need_grad=True) for shape in ((2, 3, 8), (7, 8), (1, 1, 7))
            )
            for v in (x, table, bias):
                v.d, v.g = rng.normal(size=v.shape), 0
            scores = scores_by(x, table)
            y = scores + bias
            loss = F.sum(F.exp(y * 0.1)) + (F.sum(scores) if seen else 0)
            loss.forward(clear_no_need_grad=True)
            loss.backward(clear_buffer=True)
            steps = Counter(s.op for s in session_of([loss]).plans["train"].plan.steps)
            return [loss.d, x.g, table.g, bias.g], steps

    got, steps = run(context(types))
    want, _ = run(nn.Context(["numpy:float"]))
    assert steps["batch_matmul_bias"] == (not seen)
    for g, w in zip(got, want, strict=True):
        bound = 0.02 if types == "bfloat16" else 1e-5
        assert np.abs(g.astype(np.float32) - w).max() <= bound * max(1.0, float(np.abs(w).max()))
