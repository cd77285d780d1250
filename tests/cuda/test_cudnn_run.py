# SPDX-License-Identifier: Apache-2.0
"""Kernels made of graphs and copies, on a front end that computes on host memory."""

from __future__ import annotations

import os
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnl.core.ops.op import OPS
from nnl.ext.cuda.cudnn import setups
from nnl.ext.cuda.cudnn.builders import BUILDERS
from nnl.ext.cuda.cudnn.cache import PlanCache
from nnl.ext.cuda.cudnn.lower import NotSupported
from nnl.ext.cuda.cudnn.run import Engine, Plan, WorkKernel
from nnl.ext.cuda.cudnn.spec import Draft, Graph, Work
from nnl.ext.device.kernels.module import SETUPS
from nnl.ext.device.registry import Kernel
from nnl.ext.library import cache_folder
from tests.cuda.fake_cudnn import FakeFrontEnd
from tests.cuda.kernels import execute, poisoned
from tests.cuda.test_cudnn_samples import converted
from tests.cuda.works import Declined, operand, works
from tests.native.kernels import (
    BF16,
    F32,
    assert_close,
    from_channels_last,
    run_numpy,
    to_channels_last,
)
from tests.native.test_kernels import cases

STREAM = 77


pytestmark = pytest.mark.usefixtures("host_compiler")


def engine(
    front_end: Any = None, cache: Any = None, time: Any = None, tune: bool = False
) -> Engine:
    return Engine(front_end or FakeFrontEnd(), "fake 9.0", cache, time, tune)


def root(n: int = 4) -> Graph:
    """y = 1 / sqrt(x + 3)"""
    draft = Draft()
    dim, stride = (1, n, 1, 1), (n, 1, n, n)
    x = draft.array("in", 0, dim, stride, "float32")
    t = draft.pointwise("add", x, draft.constant(3.0, 4))
    draft.pointwise("rsqrt", t, out=draft.array("out", 0, dim, stride, "float32"))
    return draft.graph()


def run_root(kernel: Kernel) -> np.ndarray:
    y = np.zeros(4, np.float32)
    execute(kernel, [np.array([1, 6, 13, 97], np.float32)], [y])
    return y


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_kernels_compute_what_the_ops_do(dtype: Any) -> None:
    made = engine()
    jobs = []
    for name in sorted(set(BUILDERS) & set(OPS)):
        op = OPS[name]
        for attrs, inputs in cases(op):
            specs, _ = run_numpy(op, attrs, [None if x is None else x.copy() for x in inputs])
            low, outs = converted(op, name, inputs, specs, dtype)
            try:
                found = works(name, attrs.as_dict(), low, outs)
            except Declined:
                continue
            jobs.append((op, attrs, low, outs, WorkKernel(made, found[-1])))
    assert len(jobs) > 40
    for op, attrs, low, outs, kernel in jobs:
        exact = [None if x is None else x.astype(F32) for x in low]
        _, want = run_numpy(op, attrs, exact)
        given = [None if x is None else x.copy() for x in low]
        memory = [poisoned(y.shape, y.dtype) for y in outs]
        execute(kernel, given, memory)
        for g, w in zip(memory, want, strict=True):
            assert_close(g, w, dtype, f"{op.name} {attrs}")
        for i in op.written(attrs):
            if given[i] is not None:
                assert_close(given[i], exact[i], F32, f"{op.name}: state {i}")


def test_a_first_layer_gets_eight_channels() -> None:
    """Data and weights come plain, in float32 and with 3 channels into a network of 16 bits."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 3, 9, 9)).astype(F32), rng.normal(size=(8, 3, 3, 3)).astype(F32)
    op = OPS["convolution"]
    attrs = op.attrs(base_axis=1, pad=(1, 1), stride=(2, 2), dilation=(1, 1))
    y = poisoned((2, 8, 5, 5), BF16)
    work = works("convolution", attrs.as_dict(), [x, w, None], [y], (set(), {0}))[0]
    *copies, graph = work.steps
    assert [c.source.dim[1] for c in copies] == [3, 3]
    assert [c.target.dim[1] for c in copies] == [8, 8]
    assert graph.by_uid[copies[1].target.uid].stride == (72, 1, 24, 8)
    execute(WorkKernel(engine(), work), [x, w], [y])
    low = [a.astype(BF16).astype(F32) for a in (x, w)]
    assert_close(from_channels_last(y), run_numpy(op, attrs, [*low, None])[1][0], BF16, "y")


def test_gradients_of_a_first_layer_are_cropped() -> None:
    rng = np.random.default_rng(0)
    x = to_channels_last(rng.normal(size=(2, 3, 9, 9)).astype(BF16))
    gy = to_channels_last(rng.normal(size=(2, 8, 9, 9)).astype(BF16))
    op = OPS["convolution_weight"]
    attrs = op.attrs(base_axis=1, pad=(1, 1), stride=(1, 1), dilation=(1, 1), shape=(8, 3, 3, 3))
    gw = poisoned((8, 3, 3, 3), F32)
    (work,) = works("convolution_weight", attrs.as_dict(), [x, gy], [gw], ({0, 1}, set()))
    execute(WorkKernel(engine(), work), [x, gy], [gw])
    exact = [from_channels_last(a).astype(F32) for a in (x, gy)]
    assert_close(gw, run_numpy(op, attrs, exact)[1][0], BF16, "gw")


def test_a_graph_without_engine_is_replaced_by_two() -> None:
    fused = FakeFrontEnd(lambda graph: len(graph.nodes) > 1 and graph.nodes[0].op == "conv_fprop")
    x, w = np.ones((1, 8, 4, 4), F32), np.ones((8, 8, 1, 1), F32)
    b, y = np.ones(8, F32), np.empty((1, 8, 4, 4), F32)
    attrs = OPS["convolution"].attrs(base_axis=1, pad=(0, 0), stride=(1, 1), dilation=(1, 1))
    ways = works("convolution", attrs.as_dict(), [x, w, b], [y])
    kernel = engine(fused).kernel(ways)
    assert isinstance(kernel, WorkKernel) and len(kernel.steps) == 2
    execute(kernel, [x, w, b], [y])
    assert np.all(y == 9)
    with pytest.raises(NotSupported, match="^no engine$"):
        engine(FakeFrontEnd(lambda graph: True)).kernel(ways)


def test_float32_stays_off_tensor_cores_unless_tf32_is_asked_for() -> None:
    x, y = np.ones((1, 8, 4, 4), F32), np.empty((1, 8, 4, 4), F32)
    w = np.ones((8, 8, 1, 1), F32)
    attrs = OPS["convolution"].attrs(base_axis=1, pad=(0, 0), stride=(1, 1), dilation=(1, 1))
    for tf32 in (False, True):
        front_end = FakeFrontEnd()
        given = {**attrs.as_dict(), "tf32": tf32}
        engine(front_end).kernel(works("convolution", given, [x, w, None], [y]))
        assert front_end.graphs[0].notes == ([] if tf32 else ["tensor core", "down"])


def test_every_thread_has_its_handle_and_every_run_its_stream() -> None:
    front_end = FakeFrontEnd()
    kernel = WorkKernel(engine(front_end), Work((root(),)))
    x, y = np.ones(4, F32), np.empty(4, F32)

    def run(stream: int) -> None:
        work = np.empty(kernel.workspace, np.uint8)
        kernel.run([x.ctypes.data], [y.ctypes.data], work.ctypes.data, stream)

    run(STREAM)
    run(STREAM + 1)
    assert front_end.streams == [STREAM, STREAM + 1] and front_end.handles == 1
    thread = threading.Thread(target=run, args=(5,))
    thread.start()
    thread.join()
    assert front_end.handles == 2


def test_a_graph_is_built_once() -> None:
    front_end = FakeFrontEnd()
    made = engine(front_end)
    for _ in range(2):
        assert np.allclose(run_root(WorkKernel(made, Work((root(),)))), [0.5, 1 / 3, 0.25, 0.1])
    assert front_end.builds == 1


def test_a_plan_on_disk_is_read_instead_of_built(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path)
    first, second = FakeFrontEnd(), FakeFrontEnd()
    run_root(WorkKernel(engine(first, cache), Work((root(),))))
    y = run_root(WorkKernel(engine(second, cache), Work((root(),))))
    assert np.allclose(y, [0.5, 1 / 3, 0.25, 0.1])
    assert (first.builds, second.builds, second.loads) == (1, 0, 1)


def test_another_version_or_device_makes_its_own_plan(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path)
    for front_end in (FakeFrontEnd(), FakeFrontEnd(version=92000)):
        WorkKernel(engine(front_end, cache), Work((root(),)))
        assert front_end.builds == 1
    other = Engine(FakeFrontEnd(), "another 9.0", cache)
    other.plan(root())
    assert other.cudnn.builds == 1
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_a_damaged_file_is_made_again(tmp_path: Path, damage: bytes | None) -> None:
    cache = PlanCache(tmp_path)
    engine(cache=cache).plan(root())
    (file,) = tmp_path.iterdir()
    good = file.read_bytes()
    file.write_bytes(good[:-9] + b"x" * 9 if damage is None else damage)
    front_end = FakeFrontEnd()
    engine(front_end, cache).plan(root())
    assert front_end.builds == 1
    assert file.read_bytes() == good


def test_a_plan_that_the_front_end_refuses_is_made_again(tmp_path: Path) -> None:
    cache, front_end = PlanCache(tmp_path), FakeFrontEnd()
    made = engine(front_end, cache)
    cache.store(made.key(root()), b"from a better world")
    made.plan(root())
    assert front_end.builds == 1
    assert cache.load(made.key(root())).startswith(b"(")


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    front_end = FakeFrontEnd()
    engine(front_end, PlanCache(tmp_path / "file" / "folder")).plan(root())
    assert front_end.builds == 1


def test_plans_unused_for_longest_go_when_the_folder_is_full(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path, limit_bytes=3500)
    for i in range(4):
        cache.store(str(i), b"x" * 1000)
        now = time.time() - 100 + i
        os.utime(cache.file(str(i)), (now, now))
        cache.load("0")
    assert [i for i in range(4) if cache.load(str(i))] == [0, 2, 3]


def test_the_folder_is_the_users(monkeypatch: Any) -> None:
    monkeypatch.setenv("NNL_CACHE_DIR", "/somewhere")
    assert cache_folder("cudnn") == Path("/somewhere/cudnn")
    monkeypatch.delenv("NNL_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder("cudnn") == Path("/x/nnl/cudnn")


def test_autotuning_takes_the_fastest_plan(tmp_path: Path) -> None:
    front_end, cache = FakeFrontEnd(), PlanCache(tmp_path)
    seconds = {0: 3.0, 2: 1.0, 3: 2.0}  # 1 cannot be built
    made = engine(front_end, cache, lambda plan, runs: seconds[plan.made.selected], tune=True)
    assert made.plan(root()).made.selected == 2
    again = engine(FakeFrontEnd(), cache, lambda plan, runs: 0.0, tune=True)
    assert again.plan(root()).made.selected == 2


def failing(*plans: int) -> Any:
    """Runs a plan, unless it is one of these."""

    def run(plan: Plan, runs: int) -> float:
        if plan.made.selected in plans:
            raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")
        return 1.0

    return run


def test_a_plan_that_does_not_run_is_passed_over(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path)
    assert engine(cache=cache, time=failing(0, 2)).plan(root()).made.selected == 3
    front_end = FakeFrontEnd()  # on disk is now what does not run on this device
    assert engine(front_end, cache, failing(3)).plan(root()).made.selected == 0
    assert front_end.builds == 1
    with pytest.raises(NotSupported, match="no plan runs: CUDNN_STATUS_EXECUTION_FAILED"):
        engine(time=failing(0, 2, 3)).plan(root())


def test_a_plan_is_taken_untried_where_memory_is_short() -> None:
    def run(plan: Plan, runs: int) -> float:
        raise MemoryError("no memory")

    assert engine(time=run).plan(root()).made.selected == 0


def test_memory_must_be_aligned() -> None:
    kernel = WorkKernel(engine(), Work((root(),)))
    x, y = np.ones(8, F32), np.empty(8, F32)
    with pytest.raises(ValueError, match="input 0 lies at the address .*, wanted a multiple of 16"):
        kernel.run([x.ctypes.data + 4], [y.ctypes.data], 0, 0)
    with pytest.raises(ValueError, match="cuDNN: output 0 lies at the address"):
        kernel.run([x.ctypes.data], [y.ctypes.data + 8], 0, 0)


def test_a_setup_says_once_why_it_has_no_kernel(monkeypatch: Any, caplog: Any) -> None:
    x, w = operand(np.ones((1, 8, 4, 4), F32)), operand(np.ones((8, 8, 1, 1), F32))
    attrs = OPS["convolution"].attrs(base_axis=1, pad=(0, 0), stride=(1, 1), dilation=(1, 1))
    call = ("convolution", BUILDERS["convolution"], attrs.as_dict(), [x, w, None], [x])
    monkeypatch.setattr(setups.ENGINES, "current", lambda: engine(FakeFrontEnd(lambda g: True)))
    monkeypatch.setattr(setups, "told", set())
    with caplog.at_level("INFO", "nnl"):
        assert setups.setup(*call) is None and setups.setup(*call) is None
    texts = [r.getMessage() for r in caplog.records if "left to" in r.getMessage()]
    assert texts == ["cuDNN: convolution is left to other kernels: no engine"]


def test_without_a_usable_cudnn_there_is_no_engine(monkeypatch: Any, caplog: Any) -> None:
    device = {"name": b"Fake", "major": 9, "minor": 0, "multiProcessorCount": 132}
    front_end = FakeFrontEnd()
    monkeypatch.setattr(setups, "front_end", lambda: front_end)
    found = setups.make_engine(device)
    assert found is not None and found.device == "Fake 9.0, 132 multiprocessors"

    def broken() -> None:
        raise RuntimeError("cudnnHandle Create failed")

    monkeypatch.setattr(front_end, "create_handle", broken)
    assert setups.make_engine(device) is None
    assert "cuDNN: it is not used, and slower kernels do its work: cudnnHandle" in caplog.text


def test_a_setup_asks_the_engine_of_the_current_device(monkeypatch: Any) -> None:
    x = operand(np.ones((1, 8, 4, 4), F32))
    w = operand(np.ones((8, 8, 1, 1), F32))
    attrs = OPS["convolution"].attrs(base_axis=1, pad=(0, 0), stride=(1, 1), dilation=(1, 1))
    call = ("convolution", BUILDERS["convolution"], attrs.as_dict(), [x, w, None], [x])
    monkeypatch.setattr(setups.ENGINES, "current", engine)
    assert isinstance(setups.setup(*call), WorkKernel)
    monkeypatch.setattr(setups.ENGINES, "current", lambda: None)
    assert setups.setup(*call) is None
    monkeypatch.setattr(setups.ENGINES, "current", engine)
    empty = operand(np.ones((0, 8, 4, 4), F32))
    assert setups.setup(*call[:3], [empty, w, None], [empty]) is None


def test_nothing_is_registered_without_the_front_end() -> None:
    ours = [s for found in SETUPS.values() for s in found if getattr(s, "func", 0) is setups.setup]
    assert len(ours) == (len(BUILDERS) if find_spec("cudnn") else 0)
