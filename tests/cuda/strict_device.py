# SPDX-License-Identifier: Apache-2.0
"""A device in host memory, and the context "strict" on it: the CUDA backend without a GPU.

Its arrays are those of strict_xp. Recording a graph runs the work once, with all memory put back
afterwards, and refuses what CUDA refuses then: copies to or from the host, and waiting. Work for a
device that is not the active one is an error, as its memory would come from another one.
"""

import ctypes
import time

import numpy as np

import nnl as nn
from nnl.core.settings.context import BACKENDS
from nnl.ext.cuda import TRAITS, setups
from nnl.ext.cuda.products import Products
from nnl.ext.device.arrays import ArrayModule
from nnl.ext.device.library import make_backend
from nnl.ext.device.registry import Registry
from tests.cuda import strict_xp
from tests.cuda.fake_blas import FakeBlas
from tests.cuda.host_stream import GEOMETRY, HOST

SPACE = "strict:0"


class Piece:
    def __init__(self, nbytes):
        self.bytes = np.zeros(nbytes + 256, np.uint8)
        strict_xp.remember(self.bytes)
        start = self.bytes.ctypes.data
        self.address = start + -start % 256


CREATE = frozenset(
    """array arange ascontiguousarray asarray concatenate copy empty empty_like eye full full_like
    linspace ones ones_like stack where zeros zeros_like""".split()
)


class _Here:
    """The array module; what makes arrays works on one device, while that is active."""

    def __init__(self, device):
        self._device = device

    def __getattr__(self, name):
        found = getattr(strict_xp.xp, name)
        if name not in CREATE:
            return found

        def call(*args, **kw):
            self._device.check()
            return found(*args, **kw)

        return call


class StrictDevice:
    active = None  # the device that this process works on
    stream = HOST
    geometry = GEOMETRY

    def __init__(self, name):
        self.name = name
        self.xp = ArrayModule(_Here(self), Products(self, FakeBlas))
        self.recordings, self.launches = 0, 0  # of graphs
        self.allocated = 0
        self.refuses = None  # (step) -> the error that a recording ends in, if that step is in it

    def check(self):
        """CuPy takes memory from the active device, and streams refuse work for another one."""
        if StrictDevice.active is not self:
            raise AssertionError(f"work for {self.name} while it is not active")

    def activate(self):
        StrictDevice.active = self

    def allocate(self, nbytes):
        self.activate()
        self.allocated += nbytes
        return Piece(nbytes)

    def address_of(self, array):
        return array._a.ctypes.data

    def array_at(self, address, shape, dtype, owner):
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        memory = (ctypes.c_uint8 * nbytes).from_address(address)
        memory.owner = owner
        return strict_xp.StrictArray(np.frombuffer(memory, dtype).reshape(shape))

    def pool(self):
        return None

    def capture(self, work, pool):
        self.check()
        if strict_xp.counts["capturing"]:
            raise RuntimeError("cudaErrorIllegalState: the stream is being captured already")
        with strict_xp.put_back():
            strict_xp.counts["capturing"] = True
            try:
                work()
            finally:
                strict_xp.counts["capturing"] = False
        if self.refuses is not None:
            self.refuses(work)
        self.recordings += 1

        def launch():
            self.check()
            self.launches += 1
            work()

        return launch

    def synchronize(self):
        strict_xp.wait()

    def mark(self):
        self.check()
        return time.perf_counter_ns()

    def nanoseconds(self, start, end):
        return end - start


DEVICE = StrictDevice("strict:0")
KERNELS = StrictDevice("strict:1")


BARE = make_backend("strict", DEVICE, TRAITS, Registry)
WITH_KERNELS = make_backend("strict", KERNELS, TRAITS, setups)
BACKENDS["strict"] = lambda device_id: (BARE,)
BACKENDS["kernels"] = lambda device_id: (WITH_KERNELS,)


def context(type_config="float", name="strict"):
    """Definitions alone; with the name "kernels", shared kernels too, run by PoCL."""
    return nn.Context([f"{name}:{type_config}"])
