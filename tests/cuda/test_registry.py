# SPDX-License-Identifier: Apache-2.0
"""Setups are asked in order, the latest first, until one takes the call."""

import numpy as np
import pytest

from nnl.ext.cuda import registry
from nnl.ext.cuda.registry import Kernel, Operand, find, register


def test_an_operand_knows_its_size():
    x = Operand((2, 3, 4), np.dtype(np.float16), channels_last=True)
    assert (x.size, x.nbytes) == (24, 48)
    assert x == Operand((2, 3, 4), np.dtype("float16"), True) and x != Operand((2, 3, 4), x.dtype)


def test_a_setup_that_declines_passes_the_call_on(monkeypatch):
    setups = {}
    monkeypatch.setattr(registry, "SETUPS", setups)
    asked = []
    kernel = Kernel()
    register("a", "b")(lambda attrs, ins, outs: kernel)
    register("a")(lambda attrs, ins, outs: asked.append(attrs))
    assert find("a", {"k": 1}, [None], [], setups) is kernel and asked == [{"k": 1}]
    assert find("b", {}, [], [], setups) is kernel and len(asked) == 1
    assert find("c", {}, [], [], setups) is None


def test_a_kernel_overwrites_nothing_and_needs_no_workspace_unless_it_says_so():
    assert not Kernel().may_overwrite(0, 0) and Kernel().workspace == 0
    with pytest.raises(NotImplementedError, match="Kernel.run"):
        Kernel().run([], [], 0, 0)
