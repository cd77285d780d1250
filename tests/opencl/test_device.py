# SPDX-License-Identifier: Apache-2.0
"""Memory, arrays, errors and limits of an OpenCL device."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.ext import opencl
from nnl.ext.device.kernels.module import Code, Geometry, Launch, words
from nnl.ext.opencl.device import KernelError, OpenClDevice, geometry_of
from nnl.ext_utils import get_extension_context

X = np.arange(6, dtype=np.float32).reshape(2, 3)


class TestContext:
    def test_no_pyopencl(self, monkeypatch):
        monkeypatch.setattr(opencl, "find_spec", lambda name: None)
        text = r"'opencl' needs pyopencl \(pip install 'nnl\[opencl\]'\)"
        with pytest.raises(NotImplementedError, match=text):
            get_extension_context("opencl")

    def test_no_driver(self, monkeypatch):
        monkeypatch.setattr(opencl, "found", lambda: ())
        assert opencl.get_device_count() == 0
        with pytest.raises(NotImplementedError, match="needs a driver: .* PoCL for processors"):
            get_extension_context("opencl")

    def test_gpus_of_all_platforms_come_before_processors(self, monkeypatch):
        import pyopencl as cl

        kinds = cl.device_type
        a, b, c = (SimpleNamespace(type=t) for t in (kinds.CPU, kinds.GPU, kinds.GPU))
        platforms = [SimpleNamespace(get_devices=lambda d=d: d) for d in ([a, b], [c])]
        monkeypatch.setattr(cl, "get_platforms", lambda: platforms)
        assert opencl.found.__wrapped__() == (b, c, a)

    def test_a_platform_without_devices_hides_no_other(self, monkeypatch):
        import pyopencl as cl

        def none():
            raise cl.RuntimeError("clGetDeviceIDs failed: DEVICE_NOT_FOUND")

        device = SimpleNamespace(type=cl.device_type.GPU)
        platforms = [SimpleNamespace(get_devices=f) for f in (none, lambda: [device])]
        monkeypatch.setattr(cl, "get_platforms", lambda: platforms)
        assert opencl.found.__wrapped__() == (device,)

    def test_device_ids(self):
        with pytest.raises(ValueError, match="device_id is 'x', wanted a number as a str"):
            get_extension_context("opencl", device_id="x")
        with pytest.raises(NotImplementedError, match="device_id is 99, and there are 0: "):
            get_extension_context("opencl", device_id="99")

    def test_the_doctor_lists_devices(self):
        from nnl.cli.doctor import _opencl

        assert _opencl().state == "ok" and _opencl().text.startswith("0: ")


class TestArrays:
    def test_what_goes_to_the_device_comes_back(self, device):
        x = device.upload(X)
        np.testing.assert_array_equal(x.get(), X)
        np.testing.assert_array_equal(x.reshape(3, -1).get(), X.reshape(3, 2))
        y = x.copy()
        y.fill(7)
        y += x
        np.testing.assert_array_equal(y.get(), X + 7)
        np.testing.assert_array_equal(x.get(), X)

    def test_what_is_refused(self, device):
        x = device.upload(X)
        with pytest.raises(TypeError, match="becomes one of numpy by get"):
            np.asarray(x)
        with pytest.raises(TypeError, match="is written whole, got the index 0"):
            x[0] = 1
        with pytest.raises(ValueError, match=r"shape \(2, 3\) has no shape \(4,\)"):
            x.reshape(4)


class TestMemory:
    def test_what_is_freed_is_given_out_again(self, device):
        address = device.empty((1000,), np.float32).address
        assert device.empty((1000,), np.float32).address == address
        device.memory.trim()
        assert device.memory.kept == 0

    def test_without_memory_there_is_an_error_and_all_stays_usable(self, device, monkeypatch):
        x = device.upload(X)
        used = device.memory.used
        monkeypatch.setattr(device.memory, "limit", used + (1 << 16))
        with pytest.raises(
            MemoryError, match=rf"opencl:0: no memory .*; {used} of {used + (1 << 16)}"
        ):
            device.empty((1 << 20,), np.float32)
        assert device.memory.used == used
        np.testing.assert_array_equal((x.copy()).get(), X)

    def test_the_device_itself_refuses_what_is_too_large(self, device, monkeypatch):
        monkeypatch.setattr(device.memory, "limit", 1 << 62)
        with pytest.raises(MemoryError, match=r"opencl:0: no memory for 22517998136\d+ bytes"):
            device.empty((1 << 51,), np.uint8)
        np.testing.assert_array_equal(device.upload(X).get(), X)

    def test_more_than_there_is_through_a_function(self, device, monkeypatch):
        monkeypatch.setattr(device.memory, "limit", device.memory.used + (1 << 20))
        with nn.context_scope(get_extension_context("opencl")), nn.auto_forward():
            x = nn.Variable.from_numpy_array(X)
            with pytest.raises(MemoryError, match="opencl:0: no memory"):
                F.broadcast(F.reshape(x, (2, 3, 1)), (2, 3, 1 << 20))
            np.testing.assert_array_equal((x + 1).d, X + 1)


def test_what_other_threads_do_while_one_records_is_done(device):
    x, y, z = device.upload(X), device.upload(X), device.upload(X)
    device.add(z, x)  # compiled before

    def work() -> None:
        device.add(x, x)
        other = Thread(target=lambda: device.add(y, device.upload(X)))
        other.start()
        other.join()

    replay = device.capture(work, None)
    np.testing.assert_array_equal(x.get(), X)
    np.testing.assert_array_equal(y.get(), 2 * X)
    replay()
    np.testing.assert_array_equal(x.get(), 2 * X)
    np.testing.assert_array_equal(y.get(), 2 * X)


class TestKernels:
    def launch(self, body: str) -> Launch:
        code = Code("nonsense", "broken(y)", ("f32 y",), body=body)
        found = Launch(code, (1, 1, 1), (1, 1, 1), b"")
        found.op = "tanh"
        return found

    @pytest.mark.parametrize("place", [-1, 6])
    def test_one_that_leaves_its_array_is_found(self, device, place):
        y = device.upload(X)
        body = f"INLINE void broken(GLOBAL f32* y) {{ y[{place}] = 1.0f; }}"
        self.launch(body).run([y.address], device.stream)
        with pytest.raises(AssertionError, match=r"outside of arrays of \[24\] bytes"):
            device.memory.check()

    @pytest.mark.filterwarnings("ignore::UserWarning")
    def test_one_that_does_not_compile_says_whose_it_is_and_what_the_device_says(self, device):
        y = device.upload(X)
        with pytest.raises(KernelError, match="nonsense of tanh does not compile") as found:
            self.launch("INLINE void broken(GLOBAL f32* y) { y[0] = unheard_of; }").run(
                [y.address], device.stream
            )
        assert "unheard_of" in str(found.value) and device.info in str(found.value)
        np.testing.assert_array_equal((y.copy()).get(), X)

    def test_a_device_that_is_lost(self, device, monkeypatch):
        y, error = device.upload(X), device.cl.RuntimeError

        def lost(*args: Any, **kw: Any) -> None:
            raise error("clEnqueueReadBuffer failed: DEVICE_NOT_AVAILABLE")

        monkeypatch.setattr(device, "cl", SimpleNamespace(Error=device.cl.Error, enqueue_copy=lost))
        with pytest.raises(KernelError, match="has refused a copy: .*DEVICE_NOT_AVAILABLE"):
            y.get()

    def test_one_that_a_lost_device_refuses(self, device, monkeypatch):
        x = device.upload(X)

        def lost(*args: Any) -> None:
            raise device.cl.RuntimeError("clEnqueueNDRangeKernel failed: DEVICE_NOT_AVAILABLE")

        cl = SimpleNamespace(Error=device.cl.Error, Kernel=device.cl.Kernel)
        cl.enqueue_nd_range_kernel = lost
        monkeypatch.setattr(device.queue, "cl", cl)
        with pytest.raises(KernelError, match="opencl:0: run_.* was refused by .*NOT_AVAILABLE"):
            device.add(x, x)

    @pytest.mark.parametrize("wait", ["synchronize", "trim"])
    def test_waiting_for_a_lost_device(self, device, monkeypatch, wait):
        def lost() -> None:
            raise device.cl.RuntimeError("clFinish failed: DEVICE_NOT_AVAILABLE")

        other = OpenClDevice(0, device.raw)
        other.empty((4,), np.float32)
        monkeypatch.setattr(other.queue, "raw", SimpleNamespace(finish=lost))
        with pytest.raises(KernelError, match="has stopped working: .*DEVICE_NOT_AVAILABLE"):
            (other.synchronize if wait == "synchronize" else other.memory.trim)()

    def test_without_a_folder_binaries_go_elsewhere(self, device, monkeypatch, tmp_path):
        (tmp_path / "file").touch()
        monkeypatch.setenv("NNL_CACHE_DIR", str(tmp_path / "file"))
        other = OpenClDevice(0, device.raw)
        assert Path(other.cache_folder).is_dir()
        x = other.upload(X)
        other.add(x, x)
        np.testing.assert_array_equal(x.get(), 2 * X)

    def test_a_number_without_float64(self, device):
        """A double of the host as float, from its bits."""
        body = "INLINE void decode(GLOBAL f32* y, const P* p) { y[0] = REAL(p->x); }"
        code = Code("decoded", "decode(y, p)", ("f32 y",), "P",
                    body="typedef struct { u64 x; } P;\n" + body)  # fmt: skip
        other = OpenClDevice(0, device.raw)
        other.options = ["-cl-std=CL1.2"]
        for value in (0.1, -3e20, 1.0, 0.0, 2.0**-100):
            y = other.empty((1,), np.float32)
            Launch(code, (1, 1, 1), (1, 1, 1), words(value)).run([y.address], other.stream)
            np.testing.assert_allclose(y.get(), [value], rtol=1e-6)


@pytest.mark.parametrize(("limit", "threads"), [((64, [64] * 3), 64), ((4096, [48, 1, 1]), 32)])
def test_blocks_are_as_large_as_the_device_takes(device, limit, threads):
    raw = SimpleNamespace(
        max_work_group_size=limit[0], max_work_item_sizes=limit[1], max_compute_units=2,
        type=device.cl.device_type.GPU, extensions="cl_khr_fp16",
    )  # fmt: skip
    found = geometry_of(device.cl, raw)
    assert (found.threads, found.team, found.double) == (threads, 32, False)


@pytest.mark.parametrize(
    "geometry",
    [Geometry(64, 32, 16, 4, 1, True), Geometry(32, 8, 4, 1, 1, False)],
    ids=["work-groups of 64", "no float64"],
)
def test_small_devices_compute_the_same(device, monkeypatch, geometry):
    """Reductions, softmax, products and gradients with other blocks than usual."""
    monkeypatch.setattr(device, "geometry", geometry)
    x = np.random.default_rng(0).normal(size=(7, 300)).astype(np.float32)
    w = np.random.default_rng(1).normal(size=(300, 5)).astype(np.float32)
    found = []
    for ctx in (nn.Context(["numpy:float"]), get_extension_context("opencl")):
        v, m = nn.Variable.from_numpy_array(x, need_grad=True), nn.Variable.from_numpy_array(w)
        with nn.context_scope(ctx):
            y = F.affine(F.softmax(v * 2), m)
            z = F.sum(y * y)
            z.forward()
            z.backward()
        found.append((z.d.copy(), v.g.copy()))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-5)
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("x", "w"),
    [((301, 230), (230, 10)), ((1, 120, 4, 4), (64, 120, 3, 3)), ((1, 7, 6, 6), (130, 7, 3, 3))],
    ids=["narrow", "narrow, of patches", "of many maps"],
)
def test_products_in_other_tiles_than_usual(device, x, w):
    """On a processor: blocks one thread wide, and those of 16 threads along m."""
    rng = np.random.default_rng(0)
    values, found = [rng.normal(size=s).astype(np.float32) for s in (x, w)], []
    for ctx in (nn.Context(["numpy:float"]), get_extension_context("opencl")):
        v, m = (nn.Variable.from_numpy_array(a, need_grad=True) for a in values)
        with nn.context_scope(ctx):
            y = F.affine(v, m) if len(x) == 2 else F.convolution(v, m, pad=(1, 1))
            z = F.sum(y * y)
            z.forward()
            z.backward()
        found.append((z.d.copy(), v.g.copy(), m.g.copy()))
    for want, got in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())
