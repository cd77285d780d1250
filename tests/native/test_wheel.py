# SPDX-License-Identifier: Apache-2.0
"""Wheels that `make wheel` has made, in a fresh environment in which there is no compiler."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import zipfile
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.request import HTTPCookieProcessor, Request, build_opener

import pytest

from tests.native.test_cpp_library import MAIN, require

pytestmark = pytest.mark.long

# Without AVX-512 the loader takes the library for x86-64-v3: as on a processor that lacks it.
LEVELS = {"x86-64-v4": {}, "x86-64-v3": {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F"}}

# Trains a step on numpy and on the engine, with the same values, and saves the network.
TRAIN = """
import numpy as np, nnl as nn, nnl.functions as F, nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.ext import native
from nnl.ext_utils import get_extension_context
assert native.library() is not None
found = []
for name in ("numpy", "cpu"):
    with nn.context_scope(get_extension_context(name)), nn.parameter_scope("", {}):
        nn.random.prng = np.random.RandomState(1)
        x, t = nn.Variable((4, 3, 16, 16)), nn.Variable((4, 1))
        x.d = np.random.default_rng(0).normal(size=x.shape).astype(np.float32)
        t.d = [[0], [1], [2], [3]]
        y = PF.affine(F.max_pooling(F.relu(PF.convolution(x, 32, (3, 3))), (2, 2)), 10)
        loss = F.mean(F.softmax_cross_entropy(y, t))
        solver = S.Momentum(lr=0.1)
        solver.set_parameters(nn.get_parameters())
        for _ in range(3):
            loss.forward()
            solver.zero_grad()
            loss.backward()
            solver.update()
        found.append({k: v.d.copy() for k, v in nn.get_parameters().items()})
        nn.save_program("net.nnlp", {"y": F.relu(x)}, {"x": x})
for k, want in found[0].items():
    np.testing.assert_allclose(found[1][k], want, rtol=2e-4, atol=2e-5)
libraries = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
print(*(p for p in libraries if "libnnl" in p or "libgomp" in p or "libdnnl" in p))
"""


@pytest.fixture(scope="session")
def python() -> str:
    return os.environ.get("NNL_WHEEL_PYTHON", sys.executable)


@pytest.fixture(scope="session")
def wheel(python: str) -> Path:
    if "NNL_WHEELS" not in os.environ:
        pytest.skip("NNL_WHEELS names no folder of wheels (make wheel)")
    tag = "import sys; print('cp%d%d' % sys.version_info[:2])"
    tag = subprocess.run([python, "-c", tag], capture_output=True, text=True).stdout.strip()
    [path] = Path(os.environ["NNL_WHEELS"]).glob(f"nnl-*-{tag}-{tag}-manylinux_*.whl")
    return path


@pytest.fixture(scope="session")
def home(wheel: Path, python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it depends on."""
    return installed(wheel, "", python, tmp_path_factory.mktemp("environment"))


def installed(wheel: Path, extra: str, python: str, folder: Path) -> Path:
    subprocess.run([python, "-m", "venv", folder], check=True)
    pip = [folder / "bin/python", "-m", "pip", "install", "-q", "--only-binary", ":all:"]
    subprocess.run([*pip, f"{wheel}{extra}"], check=True, env={"PATH": str(folder / "bin")})
    return folder


def run(command: list[str | Path], home: Path, folder: Path, level: str) -> str:
    """What a command prints where PATH leads to no compiler, on a processor of this level."""
    environment = {"PATH": str(home / "bin")} | LEVELS[level]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    if request.param == "x86-64-v4" and "avx512vl" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no AVX-512")
    return str(request.param)


def folder_of(level: str) -> str:
    return "lib/glibc-hwcaps/x86-64-v4/" if level == "x86-64-v4" else "lib/"


def test_the_wheel_is_small_and_has_the_library_for_each_level(wheel: Path):
    assert wheel.stat().st_size < 60e6
    names = zipfile.ZipFile(wheel).namelist()
    assert "nnl/console/static/index.html" in names
    for level in LEVELS:
        assert f"nnl/cpp/{folder_of(level)}libnnl.so.0.1" in names
    assert "nnl/cpp/include/nnl/model.h" in names


def test_python_computes_with_the_library_for_the_processor(home, tmp_path, level):
    found = run(["python", "-c", TRAIN], home, tmp_path, level).split()
    for name in ("libnnl.so.0.1", "libgomp.so.1", "libdnnl.so.3"):  # each once
        [path] = [path for path in found if re.search(rf"/{name}(\.|$)", path)]
        assert path.startswith(str(home))
        assert name != "libnnl.so.0.1" or path.endswith(f"cpp/{folder_of(level)}{name}")


def test_a_program_runs_with_the_library_for_the_processor(home, tmp_path, level):
    require("g++")
    run(["python", "-c", TRAIN], home, tmp_path, level)
    (tmp_path / "main.cpp").write_text(MAIN)
    flags = run(["nnl", "cpp-flags"], home, tmp_path, level).split()
    command = ["g++", "-std=c++17", "main.cpp", *flags, "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert run(["./main", "net.nnlp"], home, tmp_path, level).split() == ["1"] * 3  # relu of ones
    trace = ["/usr/bin/env", "LD_TRACE_LOADED_OBJECTS=1", "./main"]  # what the loader takes, as ldd
    assert f"cpp/{folder_of(level)}libnnl.so.0.1 " in run(trace, home, tmp_path, level)


def test_the_console_trains_its_sample(wheel, python, tmp_path, tmp_path_factory):
    """With the extra alone: the page, data for the sample, a training, ONNX out and in."""
    home = installed(wheel, "[console]", python, tmp_path_factory.mktemp("console"))
    command = [home / "bin/nnl", "console", "work", "--sample", "digits", "--no-browser"]
    environment = {"PATH": str(home / "bin")}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    ) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            browser = build_opener(HTTPCookieProcessor(CookieJar()))
            page = browser.open(address, timeout=60)
            assert b'<div id="root">' in page.read() and page.url.endswith("/edit")

            def ask(path, given=None, kind="application/json"):
                body = json.dumps(given).encode() if isinstance(given, dict) else given
                headers = {"X-NNL": "1", "Content-Type": kind}
                url = f"{address.partition('?')[0]}api/v1{path}"
                with browser.open(Request(url, body, headers), timeout=300) as answer:
                    return answer.read()

            project = page.url.split("/")[-2]
            config = {"max_epoch": 1}
            trial = json.loads(ask("/trials", {"project": project, "config": config}))
            end = time.monotonic() + 120
            while trial["status"] in ("queued", "running") and time.monotonic() < end:
                time.sleep(0.2)
                trial = json.loads(ask(f"/trials/{trial['id']}"))
            assert trial["status"] == "finished", trial["error"]
            assert trial["last"]["valid_error"] < 0.5
            document = json.loads(ask(f"/projects/{project}/document"))
            onnx = ask("/export?format=onnx", {"document": document})
            found = json.loads(ask("/import?name=a.onnx", onnx, "application/octet-stream"))
            assert found["document"]["networks"][0]["nodes"]
        finally:
            server.terminate()
