# SPDX-License-Identifier: Apache-2.0
"""What the paper's listings need in PyTorch: it runs, and docs/cpp.md counts its lines."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_paper_listings import LISTING_1, LISTING_2, LISTING_4

ROOT = Path(__file__).parents[1]

TORCH_1 = """
import torch

# Define input tensor and layer
x = torch.rand(16, 10, requires_grad=True)
layer = torch.nn.Linear(10, 5)

# Compute output for some random input
y = layer(x)

# Compute gradient with respect to input and parameters
y.backward(torch.ones_like(y))

# show all the trainable parameters
dict(layer.named_parameters())
"""

TORCH_2 = """
torch.set_default_device("cuda")
"""

LISTING_3 = """
import nnl.communicators as C
ctx = get_extension_context("cudnn")
comm = C.MultiProcessDataParallelCommunicator(ctx)
comm.init()
params = [x.grad for x in nn.get_parameters().values()]
loss.backward(clear_buffer=True)
comm.all_reduce(params)
"""

TORCH_3 = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group()
net = DistributedDataParallel(net)
net(x).sum().backward()
"""

TORCH_4 = """
net = torch.nn.Sequential(
    torch.nn.Conv2d(1, 16, 5),
    torch.nn.MaxPool2d(2),
    torch.nn.ReLU(),
    torch.nn.Conv2d(16, 16, 5),
    torch.nn.MaxPool2d(2),
    torch.nn.ReLU(),
    torch.nn.Flatten(),
    torch.nn.Linear(256, 50),
    torch.nn.ReLU(),
    torch.nn.Linear(50, 10),
)
h = net(x)
"""

# The network of the example, which is built and run by `make cpp`.
LISTING_5 = "\n".join(
    re.findall(
        r"^  (?:auto )?h = .*;$", (ROOT / "examples/cpp/train_lenet.cpp").read_text(), re.MULTILINE
    )
)

TORCH_5 = """
torch::nn::Sequential net(
    torch::nn::Conv2d(1, 16, 5),
    torch::nn::MaxPool2d(2),
    torch::nn::ReLU(),
    torch::nn::Conv2d(16, 16, 5),
    torch::nn::MaxPool2d(2),
    torch::nn::ReLU(),
    torch::nn::Flatten(),
    torch::nn::Linear(256, 50),
    torch::nn::ReLU(),
    torch::nn::Linear(50, 10));
auto h = net->forward(x);
"""


def lines(code):
    """How many lines there are that are neither empty nor a comment."""
    return sum(bool(line.strip()) and not line.startswith("#") for line in code.splitlines())


def test_the_page_says_how_many_lines_there_are():
    page = (ROOT / "docs" / "cpp.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d), .*\| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    nnl = (LISTING_1, LISTING_2, LISTING_3, LISTING_4, LISTING_5)
    torch = (TORCH_1, TORCH_2, TORCH_3, TORCH_4, TORCH_5)
    want = [(i, lines(a), lines(b)) for i, (a, b) in enumerate(zip(nnl, torch, strict=True), 1)]
    assert [tuple(map(int, row)) for row in rows] == want


def test_those_for_pytorch_do_what_the_listings_do():
    torch = pytest.importorskip("torch")
    names = {"torch": torch}
    exec(TORCH_1, names)
    w = names["layer"].weight.detach()
    assert torch.allclose(names["x"].grad, torch.ones(16, 5) @ w)
    names["x"] = torch.rand(4, 1, 28, 28)
    exec(TORCH_4, names)
    assert names["h"].shape == (4, 10)
    size = sum(p.numel() for p in names["net"].parameters())
    assert size == 16 * 26 + 16 * 401 + 50 * 257 + 10 * 51  # that of listing 4
    # In a process that ends without taking the group down, which waits for itself at times.
    network = "\n".join(["import os, torch", TORCH_4.replace("h = net(x)", "")])
    checked = "assert all(p.grad is not None for p in net.parameters())\nos._exit(0)"
    code = f"{network}\nx = torch.rand(4, 1, 28, 28)\n{TORCH_3}\n{checked}"
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    command = [sys.executable, "-c", code]
    subprocess.run(command, env={**os.environ, **ranks}, check=True, timeout=120)


@pytest.mark.long
def test_that_for_cpp_compiles(tmp_path):
    cpp_extension = pytest.importorskip("torch.utils.cpp_extension")
    code = f"#include <torch/torch.h>\ntorch::Tensor f(torch::Tensor x) {{{TORCH_5}return h;\n}}\n"
    (tmp_path / "lenet.cpp").write_text(code)
    include = [f"-isystem{path}" for path in cpp_extension.include_paths()]
    command = ["g++", "-std=c++20", "-fsyntax-only", *include, str(tmp_path / "lenet.cpp")]
    subprocess.run(command, check=True)
