# SPDX-License-Identifier: Apache-2.0
"""Kernels of cuDNN on a GPU against the meaning of their graphs in numpy. Not yet run."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from nnl.core.op import OPS
from nnl.ext.cuda.cudnn.assemble import Declined
from nnl.ext.cuda.cudnn.builders import BUILDERS
from nnl.ext.cuda.cudnn.evaluate import evaluate_work
from nnl.ext.cuda.cudnn.lower import NotSupported
from nnl.ext.cuda.cudnn.run import Engine, WorkKernel
from nnl.ext.cuda.cudnn.setups import ENGINES, measure
from nnl.ext.cuda.cudnn.spec import Work
from tests.cuda.cudnn_engines import TYPES, calls, operand
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
        gy, q, k, v, _, _, *mask = given
        forward = BUILDERS["attention"](
            attrs, [*in_specs[1:4], *in_specs[6:]], [in_specs[4], in_specs[5]]
        )[0]
        made = [np.zeros(s.size, s.dtype) for s in (in_specs[4], in_specs[5])]
        flat = [x.reshape(-1) for x in (q, k, v, *mask)]
        evaluate_work(forward, flat, made, np.zeros(1, np.uint8))
        given = [gy, q, k, v, *made, *mask]
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


def test_a_kernel_can_be_captured_and_replayed() -> None:
    _, name, attrs, ins, outs = SECOND[0]
    specs = [operand(x) for x in ins], [operand(x) for x in outs]
    kernel = engine().kernel(BUILDERS[name](attrs, *specs))
    x, w = (cupy.ones(s.size, cupy.float32) for s in specs[0][:2])
    y = cupy.zeros(specs[1][0].size, cupy.float32)
    work = cupy.empty(max(1, kernel.workspace), cupy.uint8)
    call = ([x.data.ptr, w.data.ptr, None], [y.data.ptr], work.data.ptr)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    kernel.run(*call, stream.ptr)  # loads what is loaded once
    stream.synchronize()
    with stream:
        stream.begin_capture()
        kernel.run(*call, stream.ptr)
        graph = stream.end_capture()
    y[...] = 0
    cupy.cuda.get_current_stream().synchronize()
    graph.launch(stream)
    stream.synchronize()
    assert float(y.max()) == 64 * 9


def test_a_plan_can_be_timed() -> None:
    _, name, attrs, ins, outs = SECOND[0]
    work = BUILDERS[name](attrs, [operand(x) for x in ins], [operand(x) for x in outs])[0]
    kernel = WorkKernel(engine(), work)
    plan = next(s for s in kernel.steps if hasattr(s, "graph"))
    assert 0 < measure(plan, 3) < 1
