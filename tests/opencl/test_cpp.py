# SPDX-License-Identifier: Apache-2.0
"""Programs in C++ on an OpenCL device: what the native engine computes of the same file."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl import models
from nnl.ext_utils import get_extension_context
from nnl.graph.saving.files import Programs
from tests.graph.saved import saved_sample
from tests.native.kernels import require_library
from tests.test_derived import CASES, Case

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module", autouse=True)
def loader(device):
    """The loader that pyopencl has brought along, where the system has none."""
    import ctypes

    require_library()
    try:
        ctypes.CDLL("libOpenCL.so.1")
    except OSError:
        with open("/proc/self/maps") as maps:
            found = [line.split()[-1] for line in maps if "libOpenCL" in line]
        if not found:
            pytest.skip("there is no libOpenCL.so.1 for C++")
        os.environ["NNL_OPENCL_LIBRARY"] = found[0]
    yield
    os.environ.pop("NNL_OPENCL_LIBRARY", None)


@pytest.fixture(autouse=True)
def clear():
    nn.clear_parameters()
    nn.seed(1)
    yield
    nn.clear_parameters()


def on(context, path, program=""):
    return require_library().Model(str(path), program, context)


def save(path, build, *inputs):
    """Save what `build` makes of Variables, in the context "opencl"; returns values for them."""
    with nn.context_scope(get_extension_context("opencl")):
        x = {f"x{i}": nn.Variable(value.shape) for i, value in enumerate(inputs)}
        nn.save_program(path, {"y": build(*x.values())}, x)
    return {k: v.astype(np.float32) for k, v in zip(x, inputs, strict=True)}


def mlp(x):
    return F.softmax(PF.affine(F.tanh(PF.affine(x, 24, name="a")), 10, name="b"))


def lenet(x):
    return models.lenet(x)


def resnet18(x):
    return models.resnet(x, 18, num_classes=10, test=True)


def transformer(x):
    return models.gpt2(x, 100, width=64, layers=2, heads=4, longest=32, test=True)


NETWORKS = [
    (mlp, RNG.normal(size=(4, 12))),
    (lenet, RNG.normal(size=(2, 1, 28, 28))),
    (resnet18, RNG.normal(size=(2, 3, 64, 64))),
    (transformer, RNG.integers(0, 100, (2, 32))),
]


@pytest.mark.parametrize(("build", "x"), NETWORKS)
def test_networks_give_what_the_native_engine_gives(tmp_path, build, x):
    path = tmp_path / "network.nnlp"
    given = save(path, build, x)
    (want,) = (np.frombuffer(y, np.float32) for y in on("cpu", path).run(given).values())
    model = on("opencl", path)
    for _ in range(2):
        (got,) = (np.frombuffer(y, np.float32) for y in model.run(given).values())
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())
    steps = Programs(path)["main"].steps
    on_host = {s.op for s, k in zip(steps, kernels_of(path), strict=True) if not (k or s.view)}
    assert not on_host, on_host


def kernels_of(path, program="main"):
    import json

    return json.loads(Programs(path)._kernels)["programs"][program]


def test_what_has_no_kernel_runs_on_the_host_between_copies(tmp_path):
    path = tmp_path / "sort.nnlp"
    given = save(path, lambda x: F.exp(F.sort(F.tanh(x) * 2)) + x, RNG.normal(size=(3, 40)))
    assert {bool(k) for k in kernels_of(path)} == {True, False}
    (got,) = on("opencl", path).run(given).values()
    x = given["x0"]
    want = np.exp(np.sort(np.tanh(x) * 2)) + x
    np.testing.assert_allclose(np.frombuffer(got, np.float32).reshape(x.shape), want, rtol=1e-5)


def test_training_steps_change_the_parameters_of_the_file(tmp_path):
    path = tmp_path / "step.nnlp"
    x = RNG.normal(size=(8, 5)).astype(np.float32)
    t = RNG.integers(0, 3, (8, 1)).astype(np.int32)
    with nn.context_scope(get_extension_context("opencl")):
        solver = S.Adam(0.05)

        @nn.compile
        def step(x, t):
            loss = F.mean(F.softmax_cross_entropy(mlp_of(x), t))
            solver.zero_grad()
            loss.backward()
            solver.update()
            return loss

        def mlp_of(x):
            return PF.affine(F.tanh(PF.affine(x, 8, name="a")), 3, name="b")

        with nn.auto_forward():
            mlp_of(nn.Variable((8, 5)))
            solver.set_parameters(nn.get_parameters())
            step(nn.Variable.from_numpy_array(x), nn.Variable.from_numpy_array(t))
        step.save(path)
    found = nn.load_program(path)
    (name,) = found
    names = list(found.inputs())
    given = {
        n: np.ascontiguousarray(v, found.inputs()[n].dtype)
        for n, v in zip(names, (x, t), strict=True)
    }
    host, there = on("cpu", path, name), on("opencl", path, name)
    losses = []
    for _ in range(5):
        (want,) = (np.frombuffer(y, np.float32) for y in host.run(given).values())
        (got,) = (np.frombuffer(y, np.float32) for y in there.run(given).values())
        np.testing.assert_allclose(got, want, rtol=1e-4)
        losses.append(float(got[0]))
    assert losses[-1] < losses[0]
    for parameter in host.file.parameters:
        got, want = (m.file.parameter(parameter) for m in (there, host))
        if len(got) % 4 == 0:
            got, want = np.frombuffer(got, np.float32), np.frombuffer(want, np.float32)
            np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5, err_msg=parameter)


def test_parameters_that_are_set_go_to_the_device(tmp_path):
    path = tmp_path / "mlp.nnlp"
    given = save(path, lambda x: PF.affine(x, 3, name="a"), RNG.normal(size=(4, 5)))
    model = on("opencl", path)
    model.run(given)
    w = RNG.normal(size=(5, 3)).astype(np.float32)
    model.file.set_parameter("a/affine/W", w)
    (got,) = model.run(given).values()
    want = given["x0"] @ w
    np.testing.assert_allclose(
        np.frombuffer(got, np.float32).reshape(4, 3), want, rtol=1e-4, atol=1e-5
    )


def test_profile_names_every_step(tmp_path):
    path = tmp_path / "mlp.nnlp"
    save(path, mlp, RNG.normal(size=(4, 12)))
    ops = [op for op, _, _ in on("opencl", path).profile()]
    assert ops == [s.op for s in Programs(path)["main"].steps]


@pytest.mark.long
def test_every_eighth_sample_gives_what_the_native_engine_gives(tmp_path):
    ran = set()
    for op, i in [p.values for p in CASES[::8]]:
        path = tmp_path / f"{op.name}-{i}.nnlp"
        with nn.context_scope(get_extension_context("opencl")):
            try:
                values, _ = saved_sample(Case(op, i, np.float32), path)
            except NotImplementedError:
                continue
        found = nn.load_program(path)
        if not found._kernels or not any(kernels_of(path)):
            continue
        inputs = {k: np.ascontiguousarray(values[k], s.dtype) for k, s in found.inputs().items()}
        try:
            host = on("cpu", path)
        except ValueError:  # no kernel in C++
            continue
        want, got = host.run(inputs), on("opencl", path).run(inputs)
        for name, spec in found.outputs().items():
            a, b = (np.frombuffer(y[name], spec.dtype).reshape(spec.shape) for y in (got, want))
            if op.name not in ("rand", "randn"):
                np.testing.assert_allclose(
                    a.astype(np.float64), b.astype(np.float64), rtol=1e-3, atol=1e-4,
                    err_msg=f"{op.name} {i} {name}",
                )  # fmt: skip
        ran.add(op.name)
    assert len(ran) > 30


# ---- what goes wrong ----


def test_a_file_that_was_saved_for_the_host(tmp_path):
    x = nn.Variable((2, 3))
    nn.save_program(tmp_path / "a.nnlp", {"y": F.exp(x)}, {"x": x})
    with pytest.raises(ValueError, match="has no kernels for OpenCL: build and save it in the"):
        on("opencl", tmp_path / "a.nnlp")


@pytest.mark.parametrize(
    ("context", "text"),
    [
        ("opencl:99", "there is no device 99, there are"),
        ("opencl:", "there is no context 'opencl:', wanted 'cpu', 'opencl' or 'opencl:1'"),
        ("cuda", "there is no context 'cuda'"),
    ],
)
def test_a_context_that_is_not_there(tmp_path, context, text):
    save(tmp_path / "a.nnlp", F.exp, RNG.normal(size=(2, 3)))
    with pytest.raises(ValueError, match=text):
        on(context, tmp_path / "a.nnlp")


def damaged(path, old, new):
    found = Programs(path)
    assert old in found._kernels
    found._kernels = found._kernels.replace(old, new)
    found.save(path)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (
            b"__kernel void",
            b"__kernel oops void",
            r"(?s)exp.*does not compile on.*oops",
        ),
        (b'"version":1', b'"version":2', "its kernels are of another version: save it again"),
        (b'"pieces":["', b'"pieces":[],"others":["', "its kernels are not what nnl writes"),
        (b'"launches":[[0,', b'"launches":[[7,', "there is no such kernel"),
        (b"[[0,0],[1,0]]", b"[[0,0],[9,0]]", "has an array that is not there"),
        (b'"programs":{"main":[', b'"programs":{"main":[null,', "its kernels are for other steps"),
    ],
)
def test_damaged_kernels(tmp_path, old, new, text):
    path = tmp_path / "a.nnlp"
    save(path, F.exp, RNG.normal(size=(2, 3)))
    damaged(path, old, new)
    with pytest.raises(ValueError, match=text):
        on("opencl", path)


RUN = """
import sys
import numpy as np
import pyopencl  # which finds PoCL where it came with pip
from tests.native.kernels import require_library
model = require_library().Model(sys.argv[1], "", "opencl")
(y,) = model.run({"x0": np.ones((2, 3), np.float32)}).values()
print(np.frombuffer(y, np.float32).tolist())
"""


def in_a_process(path, **environment):
    return subprocess.run(
        [sys.executable, "-c", RUN, str(path)],
        env=os.environ | environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_a_machine_without_opencl(tmp_path):
    path = tmp_path / "a.nnlp"
    save(path, F.exp, RNG.normal(size=(2, 3)))
    failed = in_a_process(path, NNL_OPENCL_LIBRARY=str(tmp_path / "libOpenCL.so.1"))
    for text in ("there is no OpenCL on this machine", "ocl-icd-libopencl1", "pocl-opencl-icd"):
        assert text in failed.stderr


def test_compiled_kernels_are_kept_and_damaged_ones_compiled_again(tmp_path):
    path = tmp_path / "a.nnlp"
    save(path, F.exp, RNG.normal(size=(2, 3)))
    want = in_a_process(path, NNL_CACHE_DIR=str(tmp_path / "cache"))
    assert want.returncode == 0, want.stderr
    (file,) = (tmp_path / "cache/opencl").iterdir()
    before = file.read_bytes(), file.stat().st_mtime_ns
    assert in_a_process(path, NNL_CACHE_DIR=str(tmp_path / "cache")).stdout == want.stdout
    assert (file.read_bytes(), file.stat().st_mtime_ns) == before
    for content in (before[0][:-100], b"nothing", before[0][:100] + b"?" + before[0][101:]):
        file.write_bytes(content)
        again = in_a_process(path, NNL_CACHE_DIR=str(tmp_path / "cache"))
        assert again.stdout == want.stdout, again.stderr
