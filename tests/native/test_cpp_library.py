# SPDX-License-Identifier: Apache-2.0
"""The C++ library as users of it meet it: what it exports, how their programs find and link it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.cli.main import main
from nnl.cli.networks import cpp
from tests.native.kernels import require_library

ROOT = Path(__file__).parents[2]
SPACES = "functions|parametric_functions|initializer|solvers"  # with declared names in them
MAIN = """
#include <cstdio>
#include <vector>

#include "nnl/model.h"

int main(int, char** argv) try {
  nnl::Model model(argv[1]);
  const std::vector<float> x(static_cast<size_t>(model.input("x").size()), 1.0f);
  model.input("x").copy_from(x.data(), x.size());
  model.run();
  for (int i = 0; i < 3; ++i) std::printf("%.9g\\n", model.output("y").data<float>()[i]);
} catch (const nnl::ValueError& e) {
  std::printf("error: %s\\n", e.what());
}
"""
PROJECT = """
cmake_minimum_required(VERSION 3.20)
project(user LANGUAGES CXX)
find_package(nnl 0.1 REQUIRED)
add_executable(main main.cpp)
target_link_libraries(main nnl::@TARGET@)
"""


def sh(command: str, folder: Path, **environment: str) -> str:
    """What a command prints, run by a shell in a folder; nnl, cmake and ninja are those here."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def require(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def installed() -> Path:
    """The library beside the extension module that these tests use."""
    require_library()
    return cpp.folder()


@pytest.fixture(scope="session", params=["cpp", "cpp-plain"])
def built(request: pytest.FixtureRequest) -> Path:
    """The library as `make` builds it, with and without oneDNN; its tests and examples have run."""
    require("make", "c++")
    sh(f"make {request.param}", ROOT)
    return ROOT / "build" / request.param / "install"


@pytest.fixture
def user(tmp_path: Path) -> tuple[Path, np.ndarray]:
    """A folder with a program in C++, and a file that it runs; and what it is to print."""
    (tmp_path / "main.cpp").write_text(MAIN)
    w = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    with nn.parameter_scope("", {}):
        x = nn.Variable((1, 4))
        y = F.relu(PF.affine(x, 3, w_init=w))
        nn.save_program(tmp_path / "net.nnlp", {"y": y}, {"x": x})
    return tmp_path, np.maximum(w.sum(0), 0)  # the program's input is ones


def check(user: tuple[Path, np.ndarray], program: str) -> None:
    folder, want = user
    got = np.array(sh(f"{program} net.nnlp", folder).split(), np.float32)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert "none.nnlp: No such file" in sh(f"{program} none.nnlp", folder)  # caught by its type


def exported(library: Path) -> list[str]:
    require("nm")
    shown = sh(f"nm -DC --defined-only {library}", ROOT)
    return [line.split(" ", 2)[2] for line in shown.splitlines()]


def test_the_version_is_the_same_everywhere():
    header = (ROOT / "cpp/include/nnl/version.h").read_text()
    version = ".".join(re.findall(r"#define NNL_VERSION_\w+ (\d+)", header))
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in settings["project"]["dynamic"]  # read from the header too
    assert version == nn.__version__


def test_nothing_is_exported_but_what_the_headers_declare():
    names = exported(installed() / "lib/libnnl.so.0.1")
    assert "nnl::Model::run()" in names
    declared = r"(typeinfo for |typeinfo name for |vtable for )?nnl::|nnl_\w+$"
    assert [name for name in names if not re.match(declared, name)] == []
    # those of cpp/src are for the library's own tests
    own = (ROOT / "cpp/src").rglob("*.h")
    headers = "\n".join(p.read_text() for p in (*(installed() / "include/nnl").iterdir(), *own))
    for name in names:
        if not name.startswith("nnl_"):
            outer = re.match(rf"[a-z ]*nnl::(?:(?:{SPACES})::)?(\w+)", name)
            declared = rf"NNL_API [^;]*\b{outer[1]}\b|\bF\({outer[1]}\)" if outer else ""
            assert outer and re.search(declared, headers), name  # F: in a list of NNL_DECLARE


def test_flags_make_a_program(user: tuple[Path, np.ndarray], capsys: pytest.CaptureFixture[str]):
    installed()
    require("g++")
    assert main(["cpp-flags"]) == 0
    flags = capsys.readouterr().out.strip()
    sh(f"g++ -std=c++17 -Wall -Wextra -Werror main.cpp {flags} -o main", user[0])
    check(user, "./main")


@pytest.mark.parametrize(
    "header", ["model", "networks", "nnabla", "functions", "solvers", "executor", "version"]
)
def test_older_cpp_is_told_by_the_headers(tmp_path: Path, header: str):
    require("g++")
    (tmp_path / "main.cpp").write_text(f'#include "nnl/{header}.h"\n')
    command = ["g++", "-std=c++11", "-fsyntax-only", f"-I{ROOT / 'cpp/include'}", "main.cpp"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    if header == "version":  # C has it, too
        assert done.returncode == 0
        return
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    assert errors[0].endswith('#error "nnl needs C++17: compile with -std=c++17"'), errors[0]


def test_an_installation_without_the_engine_says_so(monkeypatch, capsys):
    monkeypatch.setattr(cpp.importlib.util, "find_spec", lambda name: None)
    assert main(["cpp-flags"]) == 4
    err = capsys.readouterr().err
    assert "error: nnl was installed without its native engine" in err
    assert "(documentation: start/install#from-the-source)" in err


def check_package(user: tuple[Path, np.ndarray], prefix: Path, suffix: str) -> None:
    """By find_package and by pkg-config."""
    require("pkg-config")
    (user[0] / "CMakeLists.txt").write_text(PROJECT.replace("@TARGET@", "nnl" + suffix))
    sh(f"cmake -B build -G Ninja -DCMAKE_PREFIX_PATH={prefix} && cmake --build build", user[0])
    check(user, "build/main")
    flags = f"$(pkg-config --cflags --libs nnl{suffix})"
    sh(
        f"g++ -std=c++17 main.cpp {flags} -Wl,-rpath,$(pkg-config --variable=libdir nnl) -o main",
        user[0],
        PKG_CONFIG_PATH=str(prefix / "lib/pkgconfig"),
    )
    check(user, "./main")


@pytest.mark.long
def test_cmake_and_pkg_config_find_the_library_in_the_package(user: tuple[Path, np.ndarray]):
    check_package(user, installed(), "")


@pytest.mark.long
@pytest.mark.parametrize("suffix", ["", "_static"])
def test_cmake_and_pkg_config_find_a_library_built_by_make(
    built: Path, user: tuple[Path, np.ndarray], suffix: str
):
    check_package(user, built, suffix)
    needs_shared = "libnnl.so" in sh("readelf -d main build/main", user[0])
    assert needs_shared == (suffix == "")


@pytest.mark.long
def test_the_library_is_linked_by_hand(built: Path, user: tuple[Path, np.ndarray]):
    sh(
        f"g++ -std=c++17 main.cpp -I{built}/include -L{built}/lib -lnnl "
        f"-Wl,-rpath,{built}/lib -o main",
        user[0],
    )
    check(user, "./main")


@pytest.mark.long
def test_the_library_is_small(built: Path, tmp_path: Path):
    require("strip")
    sh(f"strip -o small.so {built}/lib/libnnl.so.0.1", tmp_path)
    assert (tmp_path / "small.so").stat().st_size < 8e6
