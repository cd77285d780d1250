# SPDX-License-Identifier: Apache-2.0
"""Runs a graph natively, with every pass verified, and in numpy, and compares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import pytest

import nnl as nn
from nnl.core.ops.op import OPS
from nnl.core.ops.schema import extends
from nnl.core.settings.context import Context, using
from nnl.ext import native
from nnl.ext.library import kernel_names
from nnl.graph import passes
from nnl.graph.execution.session import session_of
from nnl.graph.program.program import verify

Build = Callable[[], tuple[Any, list[Any]]]


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def leaf(*shape: int, seed: int = 0, need_grad: bool = True) -> Any:
    v = nn.Variable.from_numpy_array(numbers(*shape, seed=seed), need_grad=need_grad)
    v.grad.zero()
    return v


def verified(rewrite: Any) -> Any:
    @wraps(rewrite)
    def run(program: Any, lib: Any) -> None:
        rewrite(program, lib)
        verify(program)

    return run


@pytest.fixture
def passes_are_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    if native.library() is None:
        pytest.skip("the native engine is not built")
    monkeypatch.setattr(passes, "PASSES", [verified(p) for p in passes.PASSES])


def results(build: Build, backend: str, train: bool) -> tuple[list[np.ndarray], Counter[str]]:
    """The output and the leaves' gradients, and how often each op runs in the plan."""
    with using(target=Context([backend]).target):
        y, leaves = build()
        for _ in range(2):
            for v in leaves:
                v.grad.zero()
            if train:
                y.forward(clear_no_need_grad=True)
                out = y.d.copy()
                y.backward(numbers(*y.shape, seed=9), clear_buffer=True)
            else:
                y.forward(clear_buffer=True)
                out = y.d.copy()
    plan = session_of([y]).plans["train" if train else "infer"].plan
    grads = [v.g.copy() for v in leaves] if train else []
    return [out, *grads], Counter(s.op for s in plan.steps)


def steps_of(build: Build, train: bool = True, half: bool = False) -> Counter[str]:
    """How often each op runs in the native plan, whose values must be those of numpy."""
    kind, bound = ("bfloat16", 4e-2) if half else ("float", 2e-5)
    got, steps = results(build, f"cpu:{kind}", train)
    want, _ = results(build, "numpy:float", train)
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        g = g.astype(np.float32)
        assert g.shape == w.shape
        assert np.abs(g - w).max(initial=0) <= bound * max(1.0, np.abs(w).max(initial=0))
    return steps


def check_appending(lib: Any) -> None:
    """Ops that go on with others have their inputs, what is added as z, and activations by name."""
    appending = [n for n in kernel_names(lib) if lib.abilities(n).appends]
    assert {"affine_fused", "convolution_fused", "fused_batch_normalization"} <= {*appending}
    for name in appending:
        op, first = OPS[name], OPS[extends(name)]
        assert {*first.inputs, "z"} <= {*op.inputs}
        field = "activation" if "activation" in op.fields else "nonlinearity"
        for other in lib.abilities(name).appends:
            assert other in OPS
            if other not in ("batch_normalization", "add2"):
                op.attrs(**{field: other})
