# SPDX-License-Identifier: Apache-2.0
"""A device in host memory, and the context "strict" on it: the CUDA backend without a GPU.

Its arrays are those of strict_xp. Recording a graph runs the work once, with all memory put back
afterwards, and refuses what CUDA refuses then: copies to or from the host, and waiting.
"""

import ctypes
import time

import numpy as np

import nnl as nn
from nnl.core.context import BACKENDS
from nnl.ext.cuda import setups
from nnl.ext.cuda.arrays import ArrayModule
from nnl.ext.cuda.library import make_backend
from tests.cuda import strict_xp

SPACE = "strict:0"


class Piece:
    def __init__(self, nbytes):
        self.bytes = np.zeros(nbytes + 256, np.uint8)
        strict_xp.remember(self.bytes)
        start = self.bytes.ctypes.data
        self.address = start + -start % 256


class StrictDevice:
    stream = 0

    def __init__(self, name):
        self.name = name
        self.capturing = False
        self.xp = ArrayModule(strict_xp.xp, lambda: self.capturing)
        self.launches = 0  # of graphs
        self.allocated = 0

    def activate(self):
        pass

    def allocate(self, nbytes):
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

    def warm_up(self, work, pool):
        work()

    def capture(self, work, pool):
        with strict_xp.put_back():
            self.capturing = strict_xp.counts["capturing"] = True
            try:
                work()
            finally:
                self.capturing = strict_xp.counts["capturing"] = False

        def launch():
            self.launches += 1
            work()

        return launch

    def synchronize(self):
        strict_xp.wait()

    def mark(self):
        return time.perf_counter_ns()

    def nanoseconds(self, start, end):
        return end - start


DEVICE = StrictDevice("strict:0")
KERNELS = StrictDevice("strict:1")


BARE = make_backend("strict", DEVICE, dict)
WITH_KERNELS = make_backend("strict", KERNELS, setups)
BACKENDS["strict"] = lambda device_id: (BARE,)
BACKENDS["kernels"] = lambda device_id: (WITH_KERNELS,)


def context(type_config="float", name="strict"):
    """Definitions alone; with the name "kernels", what g++ has made of the CUDA kernels too."""
    return nn.Context([f"{name}:{type_config}"])
