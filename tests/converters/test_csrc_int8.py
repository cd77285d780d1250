# SPDX-License-Identifier: Apache-2.0
"""C source with numbers of 8 bits, on this machine and on microcontrollers."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl import models
from nnl.converters.csrc.writer import save
from nnl.converters.networks.model import Network
from nnl.converters.runtimes.compiled_c import STRICT
from tests.converters.test_csrc import SANITIZED, run
from tests.converters.test_nnb import values
from tests.graph.saved import normal


def with_all_kinds(x: nn.Variable) -> nn.Variable:
    """Every form that has 8 bits, and some that have not."""

    def weight(*shape: int, seed: int) -> nn.Variable:
        return nn.Variable.from_numpy_array(normal(*shape, seed=seed))

    h = F.convolution(x, weight(8, 2, 3, 3, seed=1), weight(8, seed=2), pad=(1, 2), group=2)
    h = F.max_pooling(F.relu(h), (2, 2), ignore_border=False, pad=(1, 0))
    k = F.depthwise_convolution(h, weight(8, 3, 3, seed=3), pad=(1, 1))
    h = F.relu(F.convolution(k + h, weight(6, 8, 3, 2, seed=4), stride=(2, 1), dilation=(1, 2)))
    h = F.affine(F.tanh(h * 0.1), weight(h.size // 2, 5, seed=5), weight(5, seed=6))
    return F.concatenate(F.softmax(h * 0.02), F.sigmoid(h * 0.1), axis=1)


def of_8_bits(folder: Path, shape: Sequence[int], build: Any, **options: Any) -> Network:
    """A network, written with the ranges that 16 samples take; its input is the first of them."""
    x = nn.Variable(shape)
    with nn.context_scope(nn.Context(["numpy:float"])):
        network = Network("eight", {"x": x}, {"y": build(x)})
    samples = normal(16, *shape[1:])
    save(folder, network, samples={"x": samples}, **options)
    x.d = samples[: shape[0]]
    return network


def test_networks_of_8_bits_are_near_those_of_floats(tmp_path: Path) -> None:
    network = of_8_bits(tmp_path / "c", (2, 4, 9, 8), with_all_kinds)
    (got,), (want,) = run(tmp_path / "c", network, *SANITIZED), values(network)
    assert 0 < np.abs(got - want).max() < 0.02 * np.abs(want).max()
    text = (tmp_path / "c" / "network.c").read_text()
    assert text.count("nnl_convolution_int8(") == 4 and "nnl_max_pooling_int8(" in text
    assert "nnl_convolution(" not in text and "nnl_softmax(" in text


def test_8_bits_take_a_quarter_of_the_memory(tmp_path: Path) -> None:
    network = of_8_bits(tmp_path / "c", (1, 1, 28, 28), models.lenet)
    save(tmp_path / "f", network)
    sizes = [
        int(re.search(r"arena_bytes = (\d+)", (tmp_path / k / "network.h").read_text())[1])  # type: ignore[index]
        for k in "cf"
    ]
    assert sizes[0] * 4 < sizes[1]
    (got,), (want,) = run(tmp_path / "c", network), values(network)
    assert np.abs(got - want).max() < 0.03 * np.abs(want).max()
    text = (tmp_path / "c" / "network.c").read_text()
    assert text.count("    nnl_convolution_int8(") == 4
    assert "relu" not in text  # what is below 0 is 0 where it is stored
    with pytest.raises(
        ValueError, match="weights of 8 bits are an array in the program, not a file"
    ):
        of_8_bits(tmp_path / "w", (1, 1, 28, 28), models.lenet, weights_file=True)


@pytest.mark.parametrize(
    "machine,flags",
    [
        ("mps2-an385", ["-mcpu=cortex-m3"]),
        ("mps2-an386", ["-mcpu=cortex-m4", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"]),
    ],
)
@pytest.mark.parametrize("eight", [True, False])
@pytest.mark.long
def test_lenet_runs_on_a_microcontroller(
    machine: str, flags: Sequence[str], eight: bool, tmp_path: Path
) -> None:
    compiler, emulator = "arm-none-eabi-gcc", "qemu-system-arm"
    for program in (compiler, emulator):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    folder, board = tmp_path / "c", Path(__file__).parent / "cortex_m"
    network = of_8_bits(folder, (1, 1, 28, 28), models.lenet)
    if not eight:
        shutil.rmtree(folder)
        save(folder, network)
    sources = ["example.c", "network.c", "weights.c", board / "start.c"]
    flags = [*flags, "-mthumb", *STRICT, "-O2", "--specs=rdimon.specs", "-T", board / "memory.ld"]
    subprocess.run([compiler, *flags, *sources, "-o", "net.elf", "-lm"], cwd=folder, check=True)
    network.inputs["x"].d.astype("<f4").tofile(folder / "x.bin")
    files = "enable=on,target=native,arg=example,arg=x.bin"
    command = [emulator, "-M", machine, "-nographic", "-semihosting-config", files]
    done = subprocess.run(
        [*command, "-kernel", "net.elf"], cwd=folder, capture_output=True, text=True, timeout=100
    )
    (want,) = values(network)
    got = np.array(done.stdout.split(), np.float32)
    assert np.abs(got - want).max() < (0.03 if eight else 1e-5) * np.abs(want).max()
