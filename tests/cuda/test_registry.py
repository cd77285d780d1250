# SPDX-License-Identifier: Apache-2.0
"""Setups are asked in order, the latest first, until one takes the call."""

import numpy as np
import pytest

from nnl.ext.device.registry import Kernel, Operand, Registry


def test_an_operand_knows_its_size():
    x = Operand((2, 3, 4), np.dtype(np.float16), channels_last=True)
    assert (x.size, x.nbytes) == (24, 48)
    assert x == Operand((2, 3, 4), np.dtype("float16"), True) and x != Operand((2, 3, 4), x.dtype)


def test_a_setup_that_declines_passes_the_call_on():
    setups, asked = Registry(), []
    kernel = Kernel()
    setups.register("a", "b")(lambda attrs, ins, outs: kernel)
    setups.register("a")(lambda attrs, ins, outs: asked.append(attrs))
    assert setups.find("a", {"k": 1}, [None], []) is kernel and asked == [{"k": 1}]
    assert setups.find("b", {}, [], []) is kernel and len(asked) == 1
    assert setups.find("c", {}, [], []) is None


def test_a_kernel_overwrites_nothing_and_needs_no_workspace_unless_it_says_so():
    assert not Kernel().may_overwrite(0, 0) and Kernel().workspace == 0
    with pytest.raises(NotImplementedError, match="Kernel.run"):
        Kernel().run([], [], 0, 0)
