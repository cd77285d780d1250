# SPDX-License-Identifier: Apache-2.0
"""NVRTC compiles the kernels for the H100's and H200's architecture; that needs no GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnl.ext.device.kernels  # noqa: F401  registers the setups
from nnl.core.ops.op import OPS
from nnl.ext.device.kernels.module import Code
from nnl.ext.device.kernels.update import RULES
from tests.cuda import kernels
from tests.cuda.host_stream import recording
from tests.cuda.test_kernels_ops import NAMES, all_cases, both_ways
from tests.native.kernels import BF16, F32

nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="CuPy is not installed")
try:
    nvrtc.getVersion()
except RuntimeError as e:  # what CuPy raises where a library of CUDA is missing
    pytest.skip(f"NVRTC does not load: {e}", allow_module_level=True)


def compiled(code: Code, ptx: bool = False) -> Any:
    """The binary for sm_90, or the assembly text."""
    program = nvrtc.createProgram(code.source("cuda"), f"{code.name}.cu", (), ())
    # CuPy adds the last one to what it is asked for
    options = (f"-arch={'compute' if ptx else 'sm'}_90", "--std=c++17", "-ftz=true")
    try:
        nvrtc.compileProgram(program, options)
        return nvrtc.getPTX(program) if ptx else nvrtc.getCUBIN(program)
    except nvrtc.NVRTCError as e:
        raise AssertionError(f"{code.name}: {nvrtc.getProgramLog(program)[:3000]}") from e
    finally:
        nvrtc.destroyProgram(program)


def recorded(run: Any) -> list[Code]:
    """What a function launches, one code for each source."""
    with recording() as codes:
        run()
    return list(codes)


SHORT = """gelu sum max softmax softmax_cross_entropy softmax_cross_entropy_backward
    batch_normalization normalization_backward group_normalization_with_statistics
    max_pooling max_pooling_backward average_pooling average_pooling_backward transpose slice
    concatenate embed embed_backward dropout rand randn randint clip_gradient""".split()


@pytest.mark.parametrize("name", SHORT)
def test_kernels_compile_for_sm_90(name: str) -> None:
    for code in recorded(lambda: both_ways(all_cases(name, BF16)[0])):
        assert compiled(code)


@pytest.mark.parametrize("rule", ["adam_update", "lamb_update"])
def test_updates_of_many_parameters_compile(rule: str) -> None:
    """Their parameters take more than the 4 KB that kernels had before CUDA 12.1."""
    rule_ = RULES[rule]
    w = np.zeros(5, F32)
    ins = [w, *[w] * (1 + rule_.states), np.array(0), np.array(0.1)] * 256
    attrs = {**OPS[rule].attrs().as_dict(), "rule": rule}
    written = range(len(ins))
    (code,) = recorded(lambda: kernels.run("multi_update", attrs, ins, [], written=written))
    assert compiled(code)


def test_other_kernels_of_plans_compile() -> None:
    x, flags = np.zeros((4, 8, 6, 6), BF16), np.zeros(2, bool)
    c = np.ones((1, 8, 1, 1), F32)
    last = ({0, 2, 3}, {0, 3})

    def run() -> None:
        attrs = {"axes": (1,), "eps": 1e-3, "batch_stat": True, "activation": "relu"}
        outs = [(x.shape, BF16), (c.shape, F32), (c.shape, F32), (x.shape, BF16)]
        ins = [x, None, x, x, c, c, c, c]
        kernels.run("batch_normalization_backward_fused", attrs, ins, outs, last)
        kernels.run("softmax_fused", {"scale": 2.0}, [x, flags[:1]], [(x.shape, BF16)])
        kernels.run("finite_check", {}, [x, c], [((2,), bool)])
        attrs = {"factor": 2.0, "low": 1.0, "high": 2.0, "steps": 3}
        ins = [flags, np.ones(1, F32), np.zeros(2, np.int64)]
        kernels.run("follow_loss_scale", attrs, ins, [], written=(1, 2))
        kernels.run("to_layout", {}, [x], [(x.shape, F32)], ({0}, set()))

    for code in recorded(run):
        assert compiled(code)


def test_arrays_of_16_bits_are_read_and_written_16_bytes_at_a_time() -> None:
    x = np.zeros((64, 64), BF16)
    run = recorded(lambda: kernels.run("add2", {}, [x, x], [(x.shape, BF16)]))
    text = compiled(run[0], ptx=True)
    assert text.count(b"ld.global.v4") == 2 and text.count(b"st.global.v4") == 1


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_every_kernel_compiles_for_sm_90(name: str, dtype: np.dtype) -> None:
    def run() -> None:
        for case in all_cases(name, dtype):
            both_ways(case)

    for code in recorded(run):
        assert compiled(code)
