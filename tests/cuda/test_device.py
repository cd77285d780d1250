# SPDX-License-Identifier: Apache-2.0
"""What CupyDevice asks of CuPy, in which order, and what it does when CUDA refuses."""

import gc
import sys
import types

import pytest

from nnl.ext.cuda.device import CupyDevice

OUT_OF_MEMORY = 2


class CUDARuntimeError(RuntimeError):
    def __init__(self, status):
        super().__init__(f"error {status}")
        self.status = status


class FakeCupy(types.ModuleType):
    """Notes what is called; `room` is how many bytes cudaMalloc has."""

    def __init__(self):
        super().__init__("cupy")
        self.log, self.room, self.kept, self.ends = [], 1 << 20, 0, None
        log = self.log

        class Device:
            def __init__(self, number):
                self.number = number

            def use(self):
                log.append(f"device {self.number}")

        class Stream:
            ptr = 77

            def use(self):
                log.append("stream")

            def begin_capture(self):
                log.append(f"begin, collecting {gc.isenabled()}")

            def end_capture(stream):
                log.append("end")
                if self.ends is not None:
                    raise self.ends
                return types.SimpleNamespace(launch=lambda s: log.append(f"launch {s.ptr}"))

        class Memory:
            def __init__(memory, nbytes):
                if nbytes > self.room:
                    raise CUDARuntimeError(OUT_OF_MEMORY)
                self.room -= nbytes

        class MemoryPointer:
            def __init__(self, memory, offset):
                self.mem, self.ptr = memory, 4096 + offset

        class MemoryPool:
            def __init__(self, allocator):
                self.malloc = allocator

        class UsingAllocator:
            def __init__(self, allocator):
                self.allocator = allocator

            def __enter__(self):
                log.append("pool")

            def __exit__(self, *error):
                log.append("no pool")

        self.ndarray = types.SimpleNamespace
        self.cuda = types.SimpleNamespace(
            Device=Device, Stream=Stream, Memory=Memory, MemoryPointer=MemoryPointer,
            MemoryPool=MemoryPool, using_allocator=UsingAllocator,
            runtime=types.SimpleNamespace(CUDARuntimeError=CUDARuntimeError),
        )  # fmt: skip

    def get_default_memory_pool(self):
        def free_all_blocks():
            self.log.append("free")
            self.room, self.kept = self.room + self.kept, 0

        return types.SimpleNamespace(free_all_blocks=free_all_blocks)


@pytest.fixture
def cupy(monkeypatch):
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


def test_a_recording_begins_works_and_ends_with_memory_of_its_own(cupy):
    device = CupyDevice(3)
    assert cupy.log == ["device 3", "device 3", "stream"] and device.stream == 77
    cupy.log.clear()
    launch = device.capture(lambda: cupy.log.append("work"), device.pool())
    assert cupy.log == ["pool", "begin, collecting False", "work", "end", "no pool"]
    assert gc.isenabled()
    launch()
    assert cupy.log[-1] == "launch 77"


@pytest.mark.parametrize("spoilt", [False, True])
def test_a_recording_in_which_a_step_fails_is_ended_and_raises_what_the_step_raised(cupy, spoilt):
    device = CupyDevice(0)
    cupy.ends = CUDARuntimeError(901) if spoilt else None  # CUDA says so again at the end

    def work():
        raise ValueError("a step")

    with pytest.raises(ValueError, match="a step"):
        device.capture(work, device.pool())
    assert cupy.log[-2:] == ["end", "no pool"] and gc.isenabled()


def test_a_recording_that_cannot_be_ended_raises_that(cupy):
    device = CupyDevice(0)
    cupy.ends = CUDARuntimeError(901)
    with pytest.raises(CUDARuntimeError, match="901"):
        device.capture(lambda: None, device.pool())
    assert cupy.log.count("end") == 1 and gc.isenabled()


def test_a_full_device_gives_back_what_the_default_pool_keeps(cupy):
    device = CupyDevice(0)
    cupy.room, cupy.kept = 100, 1000
    for allocate in (device.allocate, device.pool().malloc):
        cupy.room, cupy.kept = 100, 1000
        cupy.log.clear()
        assert allocate(500) is not None
        assert "free" in cupy.log
        with pytest.raises(CUDARuntimeError, match="2"):
            allocate(5000)


def test_memory_is_asked_for_on_the_right_device(cupy):
    first, second = CupyDevice(0), CupyDevice(1)
    cupy.log.clear()
    assert first.allocate(0).address == 4096
    second.allocate(8)
    assert cupy.log == ["device 0", "stream", "device 1", "stream"]
