# SPDX-License-Identifier: Apache-2.0
"""The emulated runtime keeps CUDA's rules: `python -m tests.cuda.emulator python -m pytest ...`."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

if "EMULATOR_FOLDER" not in os.environ:
    pytest.skip("not run by tests.cuda.emulator", allow_module_level=True)
import cupy
from cupy.cuda import runtime

H2D, D2H = runtime.memcpyHostToDevice, runtime.memcpyDeviceToHost
CAPTURED, INVALIDATED, IMPLICIT, ISOLATION, UNJOINED = 900, 901, 906, 905, 904
LATE = os.environ.get("EMULATOR_ORDER", "late") == "late"


@pytest.fixture(autouse=True)
def device_works():
    yield
    runtime.deviceSynchronize()


def refused(error: int, call: Any, *args: Any) -> None:
    with pytest.raises(runtime.CUDARuntimeError) as found:
        call(*args)
    assert found.value.status == error


def pinned(values: Any) -> np.ndarray:
    values = np.asarray(values)
    memory = cupy.cuda.alloc_pinned_memory(values.nbytes)
    made = np.frombuffer(memory, values.dtype, values.size).reshape(values.shape)
    made[...] = values
    return made


def on_device(n: int) -> Any:
    return cupy.cuda.MemoryPointer(cupy.cuda.Memory(n), 0)


def read(pointer: Any, n: int) -> np.ndarray:
    host = np.empty(n, np.uint8)
    runtime.memcpy(host.ctypes.data, pointer.ptr, n, D2H)
    return host


def alone(code: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: what it breaks stays broken."""
    head = "import cupy, numpy as np\nfrom cupy.cuda import runtime\n"
    return subprocess.run(
        [sys.executable, "-c", head + code],
        env={**os.environ, **settings}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_machine_is_an_h200():
    found = runtime.getDeviceProperties(0)
    assert found["name"] == b"NVIDIA H200, emulated" and found["multiProcessorCount"] == 132
    assert cupy.cuda.Device(0).compute_capability == "90"
    assert runtime.driverGetVersion() == runtime.runtimeGetVersion() == 13000
    assert runtime.memGetInfo()[1] == 143771 << 20


def test_new_memory_is_nan():
    assert np.isnan(read(on_device(4000), 4000).view(np.float32)).all()


def test_memory_of_a_pool_is_nan_again():
    for _ in range(2):
        x = cupy.empty(1000, np.float32)
        assert np.isnan(x.get()).all()
        x[:] = 1


def test_more_memory_than_there_is_is_refused():
    refused(2, runtime.malloc, 143771 << 20)
    assert runtime.memGetInfo()[0] > 100 << 30


def test_memory_comes_back_when_it_is_freed():
    before = runtime.memGetInfo()[0]
    address = runtime.malloc(1 << 20)
    assert runtime.memGetInfo()[0] == before - (1 << 20)
    runtime.free(address)
    assert runtime.memGetInfo()[0] == before
    refused(1, runtime.free, address)


def test_copies_beyond_an_end_are_refused():
    memory, host = on_device(100), np.zeros(101, np.uint8)
    refused(1, runtime.memcpy, memory.ptr, host.ctypes.data, 101, H2D)
    refused(1, runtime.memcpy, memory.ptr, host.ctypes.data, 100, D2H)
    runtime.memcpy(memory.ptr, host.ctypes.data, 100, H2D)


@pytest.mark.skipif(not LATE, reason="the order is not the late one")
class TestLate:
    def test_a_copy_to_pinned_memory_is_not_there_before_one_waits(self):
        memory, host, stream = on_device(8), pinned(np.zeros(8, np.uint8)), cupy.cuda.Stream()
        runtime.memsetAsync(memory.ptr, 5, 8, stream.ptr)
        runtime.memcpyAsync(host.ctypes.data, memory.ptr, 8, D2H, stream.ptr)
        assert (host == 0).all()
        stream.synchronize()
        assert (host == 5).all()

    def test_pinned_memory_is_read_late_and_other_memory_at_once(self):
        stream, memory = cupy.cuda.Stream(), [on_device(4), on_device(4)]
        hosts = [pinned(np.full(4, 1, np.uint8)), np.full(4, 1, np.uint8)]
        for m, h in zip(memory, hosts, strict=True):
            runtime.memcpyAsync(m.ptr, h.ctypes.data, 4, H2D, stream.ptr)
            h[:] = 9
        stream.synchronize()
        assert [read(m, 4)[0] for m in memory] == [9, 1]

    def test_work_goes_on_while_one_asks(self):
        memory, stream = on_device(8), cupy.cuda.Stream()
        runtime.memsetAsync(memory.ptr, 5, 8, stream.ptr)
        assert [stream.done for _ in range(4)] == [False, False, True, True]

    def test_streams_that_do_not_block_see_nothing_of_the_default_one(self):
        memory = on_device(4)
        other, side = cupy.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
        host = pinned(np.zeros((2, 4), np.uint8))
        runtime.memsetAsync(memory.ptr, 3, 4, 0)
        runtime.memcpyAsync(host[0].ctypes.data, memory.ptr, 4, D2H, side.ptr)
        side.synchronize()
        runtime.memcpyAsync(host[1].ctypes.data, memory.ptr, 4, D2H, other.ptr)
        other.synchronize()
        assert host[:, 0].tolist() == [255, 3]


def test_an_event_orders_streams():
    a, b = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    memory, host = on_device(4), pinned(np.zeros(4, np.uint8))
    runtime.memsetAsync(memory.ptr, 3, 4, a.ptr)
    b.wait_event(a.record())
    runtime.memcpyAsync(host.ctypes.data, memory.ptr, 4, D2H, b.ptr)
    b.synchronize()
    assert (host == 3).all()


def test_events_tell_time():
    stream = cupy.cuda.Stream()
    start, end = stream.record(), stream.record()
    if LATE:
        refused(600, runtime.eventElapsedTime, start.ptr, end.ptr)
    end.synchronize()
    assert 0 <= cupy.cuda.get_elapsed_time(start, end) < 1000


def capture(stream: Any, work: Any, mode: Any = None) -> Any:
    stream.begin_capture(mode)
    try:
        work()
    finally:
        graph = stream.end_capture()
    return graph


def test_a_graph_runs_when_it_is_launched_and_as_often():
    stream, memory, host = cupy.cuda.Stream(), on_device(4), pinned(np.full(4, 7, np.uint8))
    copy = (memory.ptr, host.ctypes.data, 4, H2D, stream.ptr)
    graph = capture(stream, lambda: runtime.memcpyAsync(*copy))
    assert read(memory, 4)[0] == 255
    for value in (7, 8):
        host[:] = value
        graph.launch(stream)
        stream.synchronize()
        assert read(memory, 4)[0] == value


@pytest.mark.parametrize("joined", [True, False])
def test_a_graph_has_what_streams_fork_to(joined):
    a, b = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    memory = on_device(4)

    def work():
        b.wait_event(a.record())
        runtime.memsetAsync(memory.ptr, 3, 4, b.ptr)
        if joined:
            a.wait_event(b.record())

    if not joined:
        refused(UNJOINED, capture, a, work)
        return
    capture(a, work).launch(a)
    a.synchronize()
    assert read(memory, 4)[0] == 3


UNSAFE, ALWAYS = ["malloc", "copy"], ["synchronize", "ask", "wait for the device", "default stream"]


@pytest.mark.parametrize("what", [*ALWAYS, *UNSAFE])
def test_what_a_recording_forbids(what):
    stream, memory, host = cupy.cuda.Stream(), on_device(4), np.zeros(4, np.uint8)
    calls = {
        "synchronize": (CAPTURED, lambda: stream.synchronize()),
        "ask": (CAPTURED, lambda: runtime.check_status(runtime.streamQuery(stream.ptr))),
        "wait for the device": (CAPTURED, runtime.deviceSynchronize),
        "default stream": (IMPLICIT, lambda: runtime.memsetAsync(memory.ptr, 3, 4, 0)),
        "malloc": (CAPTURED, lambda: runtime.malloc(4)),
        "copy": (CAPTURED, lambda: runtime.memcpy(memory.ptr, host.ctypes.data, 4, H2D)),
    }
    error, call = calls[what]
    stream.begin_capture(runtime.streamCaptureModeGlobal)
    refused(error, call)
    with pytest.raises(RuntimeError, match="invalidated"):
        stream.is_capturing()
    refused(INVALIDATED, runtime.memsetAsync, memory.ptr, 3, 4, stream.ptr)
    refused(INVALIDATED, stream.end_capture)
    assert not stream.is_capturing()


def test_memory_may_be_had_in_relaxed_recordings():
    stream = cupy.cuda.Stream()
    graph = capture(stream, lambda: runtime.free(runtime.malloc(4)))
    graph.launch(stream)


def test_a_recording_may_not_wait_for_other_work():
    a, b = cupy.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
    event = b.record()
    a.begin_capture()
    refused(ISOLATION, a.wait_event, event)
    refused(INVALIDATED, a.end_capture)


def test_the_default_stream_cannot_be_recorded():
    refused(CAPTURED, runtime.streamBeginCapture, 0, 0)


def test_functions_of_the_host_can_be_recorded():
    stream, calls = cupy.cuda.Stream(), []
    graph = capture(stream, lambda: stream.launch_host_func(calls.append, 1))
    assert calls == []
    for _ in range(2):
        graph.launch(stream)
    stream.synchronize()
    assert calls == [1, 1]


def test_memory_that_a_graph_needs_must_live():
    done = alone("""
stream, memory = cupy.cuda.Stream(), runtime.malloc(4)
stream.begin_capture()
runtime.memsetAsync(memory, 3, 4, stream.ptr)
graph = stream.end_capture()
runtime.free(memory)
graph.launch(stream)
try:
    stream.synchronize()
except runtime.CUDARuntimeError as e:
    assert e.status == 700
try:
    runtime.malloc(4)
except runtime.CUDARuntimeError as e:
    assert e.status == 700
    print("and stays")
""")
    assert "and stays" in done.stdout, done.stderr
    assert "a memset uses 4 bytes" in done.stderr and "have been freed" in done.stderr


def test_host_code_cannot_touch_the_memory_of_a_device():
    code = """
import ctypes
a = cupy.asarray(np.zeros(4))
print(a.get().sum(), flush=True)
print(ctypes.c_float.from_address(a.data.ptr).value)
"""
    done = alone(code)
    assert done.stdout == "0.0\n" and done.returncode == -11
    assert alone(code, EMULATOR_PROTECT="0").returncode == 0


def test_writing_next_to_an_array_is_found():
    done = alone("""
import ctypes, on_stream
memory = runtime.malloc(4)
on_stream.enqueue(0, lambda: ctypes.memset(memory + 4, 0, 1))
try:
    runtime.deviceSynchronize()
except runtime.CUDARuntimeError as e:
    print(e.status)
""")
    assert done.stdout == "700\n" and "next to the 4 bytes" in done.stderr


def test_devices_are_apart():
    done = alone(
        """
with cupy.cuda.Device(1):
    theirs, stream = cupy.asarray(np.arange(3.)), cupy.cuda.Stream()
    assert runtime.pointerGetAttributes(theirs.data.ptr).device == 1
event = cupy.cuda.Event()
try:
    event.record(stream)
except runtime.CUDARuntimeError as e:
    print(e.status, theirs.get())
""",
        EMULATOR_DEVICES="2",
    )
    assert done.stdout == "400 [0. 1. 2.]\n", done.stderr
