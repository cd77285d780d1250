# SPDX-License-Identifier: Apache-2.0
"""Kernels of cuDNN on a GPU against the meaning of their graphs in numpy. Not yet run."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from nnl.core.ops.op import OPS
from nnl.ext.cuda.cudnn.assemble import Declined
from nnl.ext.cuda.cudnn.builders import BUILDERS
from nnl.ext.cuda.cudnn.lower import NotSupported
from nnl.ext.cuda.cudnn.run import Engine, WorkKernel
from nnl.ext.cuda.cudnn.setups import ENGINES, measure
from nnl.ext.cuda.cudnn.spec import Array, Draft, Work, channels_last
from tests.cuda.cudnn_engines import TYPES, calls, operand
from tests.cuda.evaluate import evaluate_work
from tests.cuda.test_cudnn_samples import converted
from tests.native.kernels import assert_close, run_numpy
from tests.native.test_kernels import cases

if find_spec("cudnn") is None or find_spec("cupy") is None:
    pytest.skip("cuDNN's front end or CuPy is not installed", allow_module_level=True)
import cupy

if not cupy.cuda.is_available():
    pytest.skip("this machine lacks a GPU", allow_module_level=True)
pytestmark = pytest.mark.cuda

SMALL = {"batch": 4, "side": 8, "words": 32}
FIRST, SECOND = (list(calls(d, **SMALL)) for d in ("bfloat16", "float32"))


def engine() -> Engine:
    found = ENGINES.current()
    assert found is not None
    return found


def on_device(kernel: WorkKernel, ins: list[Any], outs: list[Any]) -> tuple[list[Any], list[Any]]:
    """(inputs, outputs) after a run, as flat arrays; states among the inputs have changed."""

    def up(x: Any) -> Any:
        return None if x is None else cupy.asarray(x.reshape(-1).view(np.uint8))

    memory, results = [up(x) for x in ins], [up(y) for y in outs]
    work = cupy.full(max(1, kernel.workspace), 0x7B, cupy.uint8)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    kernel.run(
        [None if m is None else m.data.ptr for m in memory],
        [m.data.ptr for m in results],
        work.data.ptr,
        stream.ptr,
    )
    stream.synchronize()

    def down(m: Any, x: Any) -> Any:
        return None if m is None else cupy.asnumpy(m).view(x.dtype)

    return (
        [down(m, x) for m, x in zip(memory, ins, strict=True)],
        [down(m, y) for m, y in zip(results, outs, strict=True)],
    )


def check(work: Work, ins: list[Any], outs: list[Any], dtype: Any, what: str) -> bool:
    """Compare one way with its meaning; False where cuDNN has no engine."""
    try:
        kernel = WorkKernel(engine(), work)
    except NotSupported:
        return False
    flat = [None if x is None else x.reshape(-1).copy() for x in ins]
    want = [np.zeros(y.size, y.dtype) for y in outs]
    evaluate_work(work, flat, want, np.zeros(work.scratch()[1], np.uint8))
    after, got = on_device(kernel, ins, outs)
    for g, w in zip(got, want, strict=True):
        assert_close(g, w, dtype, what)
    for a, b in zip(after, flat, strict=True):
        if a is not None:
            assert_close(a, b, dtype, f"{what}: state")
    return True


def values(specs: list[Any], seed: int) -> list[Any]:
    """Random memory; what may be a variance is positive."""
    rng = np.random.default_rng(seed)
    return [
        None
        if s is None
        else (rng.uniform(0.5, 1.5, s.shape) * rng.choice([-1, 1], s.shape)).astype(s.dtype)
        for s in specs
    ]


def forward_first(name: str, attrs: Any, specs: list[Any], given: list[Any], n: int) -> list[Any]:
    """(gy, n inputs, y, lse, mask?) with y and lse of the inputs."""
    y = n + 1
    ins = [*range(1, y), *range(y + 2, len(given))]
    work = BUILDERS[name](attrs, [specs[i] for i in ins], specs[y : y + 2])[0]
    made = [np.zeros(s.size, s.dtype) for s in specs[y : y + 2]]
    evaluate_work(work, [given[i].reshape(-1) for i in ins], made, np.zeros(1, np.uint8))
    return [*given[:y], *made, *given[y + 2 :]]


@pytest.mark.parametrize("i", range(len(FIRST)), ids=lambda i: f"{FIRST[i][1]}-{FIRST[i][0]}")
@pytest.mark.parametrize("d", TYPES)
def test_graphs_compute_on_the_device_what_they_mean(d: str, i: int) -> None:
    what, name, attrs, ins, outs = list(calls(d, **SMALL))[i]
    in_specs, out_specs = ([operand(x) for x in xs] for xs in (ins, outs))
    try:
        ways = BUILDERS[name](attrs, in_specs, out_specs)
    except Declined as e:
        pytest.skip(str(e))
    given = values(in_specs, i)
    if "normalization" in name:
        given = [x if x is None or x.dtype != np.float32 else np.abs(x) for x in given]
    if "attention_backward" in name:  # y and lse must be those of the inputs
        given = forward_first("attention", attrs, in_specs, given, 3)
    if "attention_packed_backward" in name:
        given = forward_first("attention_packed", attrs, in_specs, given, 1)
    results = [np.zeros(s.shape, s.dtype) for s in out_specs]
    tolerance = np.dtype(TYPES[d])
    taken = [check(work, given, results, tolerance, f"{name} {what} {d}") for work in ways]
    if not any(taken):
        pytest.skip("cuDNN has no engine")


@pytest.mark.parametrize("d", TYPES)
@pytest.mark.parametrize("name", sorted(set(BUILDERS) & set(OPS)))
def test_samples_on_the_device(name: str, d: str) -> None:
    op, taken = OPS[name], 0
    for attrs, inputs in cases(op):
        copies = [None if x is None else x.copy() for x in inputs]
        specs, _ = run_numpy(op, attrs, copies)
        low, outs = converted(op, name, inputs, specs, TYPES[d])
        shapes = [
            [None if x is None else (x.shape, x.dtype.name) for x in xs] for xs in (low, outs)
        ]
        try:
            ways = BUILDERS[name](attrs.as_dict(), *([operand(x) for x in xs] for xs in shapes))
        except Declined:
            continue
        taken += sum(check(work, low, outs, TYPES[d], f"{name} {attrs}") for work in ways)
    if not taken:
        pytest.skip("cuDNN has no engine for any sample")


@pytest.mark.parametrize("op", ["convolution", "batch_matmul", "layer_normalization"])
def test_a_kernel_can_be_captured_and_replayed(op: str) -> None:
    _, name, attrs, ins, outs = next(c for c in SECOND if c[1] == op)
    specs = [operand(x) for x in ins], [operand(x) for x in outs]
    kernel = engine().kernel(BUILDERS[name](attrs, *specs))
    given = [None if x is None else cupy.asarray(x.ravel()) for x in values(specs[0], 1)]
    made = [cupy.zeros(s.size, cupy.float32) for s in specs[1]]
    work = cupy.empty(max(1, kernel.workspace), cupy.uint8)
    addresses = [[None if x is None else x.data.ptr for x in xs] for xs in (given, made)]
    call = (*addresses, work.data.ptr)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    kernel.run(*call, stream.ptr)  # loads what is loaded once
    stream.synchronize()
    want = [cupy.asnumpy(y) for y in made]
    assert all(y.any() for y in want)
    with stream:
        stream.begin_capture()
        kernel.run(*call, stream.ptr)
        graph = stream.end_capture()
    for y in made:
        y[...] = 0
    cupy.cuda.get_current_stream().synchronize()
    graph.launch(stream)
    stream.synchronize()
    for y, w in zip(made, want, strict=True):
        assert np.array_equal(cupy.asnumpy(y), w)


def test_products_of_float32_are_not_rounded_to_tf32() -> None:
    a = np.full((1, 64, 64), 1 + 2**-12, np.float32)
    attrs = {"transpose_a": False, "transpose_b": False}
    spec = operand((a.shape, "float32"))
    kernel = engine().kernel(BUILDERS["batch_matmul"](attrs, [spec, spec], [spec]))
    _, (y,) = on_device(kernel, [a, a], [np.zeros_like(a)])
    np.testing.assert_allclose(y, (a.astype(np.float64) @ a).reshape(-1), rtol=1e-6)


def test_relu_of_nan() -> None:
    """What cuDNN makes of it is not documented; ours is NaN. A difference must be known."""
    x = np.full((1, 8, 4, 4), np.nan, np.float32)
    draft = Draft()
    like = Array(1, x.shape, channels_last(x.shape), "float32")
    out = draft.add(replace(like, uid=1001))
    draft.pointwise("relu", draft.add(like), out=out)
    kernel = WorkKernel(engine(), Work((draft.graph(),)))
    _, (y,) = on_device(kernel, [x], [np.zeros_like(x)])
    assert np.isnan(y).all()


def test_a_plan_can_be_timed() -> None:
    _, name, attrs, ins, outs = SECOND[0]
    work = BUILDERS[name](attrs, [operand(x) for x in ins], [operand(x) for x in outs])[0]
    kernel = WorkKernel(engine(), work)
    plan = next(s for s in kernel.steps if hasattr(s, "graph"))
    assert 0 < measure(plan, 3) < 1
