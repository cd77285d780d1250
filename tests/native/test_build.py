# SPDX-License-Identifier: Apache-2.0
"""How the native engine is built, installed, found and, where it cannot be used, done without."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import types
import zipfile
from pathlib import Path

import pytest

from nnl.cli.networks import cpp
from nnl.converters.nnp import members
from nnl.ext import native
from nnl.ext.native import loading
from tests.native.kernels import require_library

ROOT = Path(__file__).parents[2]
NAME = "nnl.ext.native._native"

# A sum that is large enough for a kernel; says on stdout which backend did it, and the result.
SUM = """
import numpy as np, nnl as nn, nnl.functions as F
from nnl.ext import native
x = nn.Variable.from_numpy_array(np.ones((100, 100)))
y = F.sum(x + x)
y.forward()
native.library()
print(native.library() is not None, y.d)
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs Python code from the root of the repository, in an environment with these changes."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def run_copy(
    folder: Path, extra: dict[str, bytes], *after: Path
) -> subprocess.CompletedProcess[str]:
    """Runs SUM on a copy of nnl that has these files in place of the extension modules.

    Args:
        after: Folders in which Python looks after that of the copy.
    """
    package = folder / "nnl" / "ext" / "native"
    for inside in ("", "ext", "ext/native"):  # links to all but the extension modules
        (folder / "nnl" / inside).mkdir(exist_ok=True, parents=True)
        for path in (ROOT / "nnl" / inside).iterdir():
            target = folder / "nnl" / inside / path.name
            if path.suffix != ".so" and path.name not in ("ext", "native", "__pycache__"):
                target.symlink_to(path)
    for name, content in extra.items():
        (package / name).write_bytes(content)
    # Without site no .pth file is read, and so no editable installation comes first.
    return subprocess.run(
        [sys.executable, "-S", "-c", SUM],
        cwd=folder,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(folder), *map(str, after), *sys.path[1:]])}
        | {"NNL_NATIVE": "ON", "NNL_LOG_LEVEL": "INFO"},
        capture_output=True,
        text=True,
        timeout=60,
    )


def suffix() -> str:
    return importlib.machinery.EXTENSION_SUFFIXES[0]


def dynamic_section(path: str) -> str:
    if shutil.which("readelf") is None:
        pytest.skip("readelf is not installed")
    return subprocess.run(
        ["readelf", "-d", path], capture_output=True, text=True, check=True
    ).stdout


# Loading


def test_off_in_the_environment_says_so_once_and_numpy_works():
    done = run(SUM, NNL_NATIVE="OFF", NNL_LOG_LEVEL="INFO")
    assert done.stdout.split() == ["False", "20000.0"]
    assert done.stderr.count("NNL_NATIVE is off: the numpy backend does all the work") == 1


@pytest.mark.parametrize("value", ["off", "0", "False"])
def test_off_may_be_written_in_several_ways(monkeypatch, value):
    monkeypatch.setenv("NNL_NATIVE", value)
    assert native.library.__wrapped__() is None


def test_an_installation_without_the_engine_says_so_once_and_works(tmp_path):
    done = run_copy(tmp_path, {})
    assert done.stdout.split() == ["False", "20000.0"], done.stderr
    assert done.stderr.count("The native engine is not used") == 1
    assert "nnl was installed without it): numpy does the work, slower" in done.stderr


def test_sources_in_the_way_of_what_was_installed_are_named(tmp_path):
    installed = tmp_path / "site-packages"
    for file, text in (
        ("nnl/__init__.py", ""),
        ("nnl-0.1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: nnl\nVersion: 0.1.0\n"),
        ("nnl-0.1.0.dist-info/RECORD", "nnl/__init__.py,,\nnnl-0.1.0.dist-info/METADATA,,\n"),
    ):
        (installed / file).parent.mkdir(parents=True, exist_ok=True)
        (installed / file).write_text(text)
    done = run_copy(tmp_path / "copy", {}, installed)
    assert done.stdout.split() == ["False", "20000.0"], done.stderr
    assert (
        f"[WARNING]: The native engine is not used (nnl is imported from its sources in {ROOT}, "
        f"which hold no engine, and not from {installed}, where it is installed: start Python in "
        "another folder): numpy does the work, slower"
    ) in done.stderr


def test_setup_ends_with_how_to_use_it():
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    command = ["make", "-n", "-W", "cpp/CMakeLists.txt", "setup"]  # as if that file had changed
    outer = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")  # of a make that runs the tests
    env = {k: v for k, v in os.environ.items() if k not in outer}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=env)
    *_, said, touched = done.stdout.splitlines()
    assert said == "echo 'To use it: . .venv/bin/activate'"
    assert touched == "touch .venv/.native"


@pytest.mark.parametrize("name", ["_processor", "_native"])
def test_a_damaged_library_leaves_the_work_to_numpy_and_names_the_reason(tmp_path, name):
    require_library()
    good = Path(importlib.import_module("nnl.ext.native._processor").__file__)
    files = {"_processor" + suffix(): good.read_bytes()}
    files[name + suffix()] = b"\x7fELF no more"
    done = run_copy(tmp_path, files)
    assert done.stdout.split() == ["False", "20000.0"], done.stderr
    assert done.stderr.count("[WARNING]: The native engine is not used") == 1
    assert name + suffix() in done.stderr


def fake(monkeypatch: pytest.MonkeyPatch, name: str, **members: object) -> None:
    module = types.ModuleType(f"nnl.ext.native.{name}")
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_an_engine_of_other_sources_is_no_damage_in_a_file(monkeypatch):
    onnx = pytest.importorskip("onnx")
    from nnl.converters.onnx.file.reader import read

    monkeypatch.setenv("NNL_NATIVE", "ON")
    monkeypatch.setattr(native, "load", lambda: types.ModuleType("_native"))
    monkeypatch.setattr(members, "library", native.library.__wrapped__)
    said = "built from other sources than this nnl .*'op_call'.*: build it again .make setup"
    with pytest.raises(RuntimeError, match=said):
        read(onnx.ModelProto(ir_version=8).SerializeToString())


def test_a_processor_that_lacks_instructions_is_named_before_the_library_is_loaded(monkeypatch):
    fake(monkeypatch, "_processor", missing_instructions=lambda: ["avx512f", "avx512bw"])
    monkeypatch.setitem(sys.modules, NAME, None)  # importing it would be another error
    with pytest.raises(ImportError, match="processor with avx512f, avx512bw, which this one lacks"):
        loading.load()


def test_what_cannot_be_used_is_logged_as_a_warning(monkeypatch, caplog):
    fake(monkeypatch, "_processor", missing_instructions=lambda: ["avx512f"])
    monkeypatch.setenv("NNL_NATIVE", "ON")
    assert native.library.__wrapped__() is None
    record = caplog.records[-1]
    assert record.levelname == "WARNING"
    assert "install nnl again on this machine): numpy does the work" in record.getMessage()


def failing_import(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def import_(name: str) -> types.ModuleType:
        if name == "_processor":
            return types.SimpleNamespace(missing_instructions=lambda: [])  # type: ignore[return-value]
        raise ImportError(text)

    monkeypatch.setattr(loading, "_import", import_)


def test_a_missing_onednn_says_what_to_install(monkeypatch):
    failing_import(monkeypatch, "libdnnl.so.3: cannot open shared object file")
    monkeypatch.setattr(loading, "ONEDNN_PACKAGE", "no-such-package-of-onednn")
    with pytest.raises(ImportError, match="pip install no-such-package-of-onednn==2023.2.0"):
        loading.load()


def test_onednn_is_loaded_from_where_pip_put_it(monkeypatch):
    if not list(importlib.metadata.distributions(name=loading.ONEDNN_PACKAGE)):
        pytest.skip("onednn-cpu-gomp is not installed")
    failing_import(monkeypatch, "libdnnl.so.3: cannot open shared object file")
    loaded: list[str] = []
    monkeypatch.setattr(loading.ctypes, "CDLL", lambda path, mode: loaded.append(path))
    with pytest.raises(ImportError, match="cannot open"):  # asked once more after the loading
        loading.load()
    assert [Path(path).name for path in loaded] == ["libdnnl.so.3"]


def test_other_errors_of_the_loader_are_passed_on(monkeypatch):
    failing_import(monkeypatch, "undefined symbol: GOMP_parallel")
    with pytest.raises(ImportError, match="undefined symbol: GOMP_parallel"):
        loading.load()


def test_the_processor_of_the_build_lacks_nothing():
    require_library()
    assert importlib.import_module("nnl.ext.native._processor").missing_instructions() == []


# What is linked


def library_file() -> str:
    """The library itself, which the extension module is linked with."""
    require_library()
    return str(next((cpp.folder() / "lib").glob("libnnl.so.*")))


def test_the_library_looks_for_onednn_relative_to_itself():
    section = dynamic_section(library_file())
    if "libdnnl.so.3" not in section:
        pytest.skip("this build is without oneDNN")
    [paths] = [line for line in section.splitlines() if "RUNPATH" in line or "RPATH" in line]
    places = paths.split("[")[1].rstrip("]").split(":")
    assert all(place.startswith("$ORIGIN") for place in places)
    assert "$ORIGIN/../../../../.." in places  # <environment>/lib
    assert "$ORIGIN/../../../lib" in places  # pip install --target


def test_the_library_links_no_python_and_no_second_openmp():
    section = dynamic_section(library_file())
    needed = [line.split("[")[1].rstrip("]") for line in section.splitlines() if "NEEDED" in line]
    assert not [n for n in needed if n.startswith(("libpython", "libtorch"))]
    openmp = [n for n in needed if n.startswith(("libgomp", "libiomp", "libomp"))]
    assert len(openmp) <= 1  # gcc's, or that of another compiler


def test_everything_the_library_needs_is_found():
    path = require_library().__file__  # and of the library
    if shutil.which("ldd") is None:
        pytest.skip("ldd is not installed")
    shown = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
    assert "not found" not in shown


# Packages


def build(kind: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Builds the "sdist" or "wheel" of this repository into a folder, with the build backend."""
    pytest.importorskip("scikit_build_core")
    code = f"from scikit_build_core.build import build_{kind}; build_{kind}({str(folder)!r})"
    clean = {k: v for k, v in os.environ.items() if k != "NNL_NATIVE" and "SKBUILD" not in k}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def wheel_in(folder: Path) -> tuple[str, list[str]]:
    [path] = folder.glob("*.whl")
    return path.name, zipfile.ZipFile(path).namelist()


def test_a_source_distribution_has_the_code_of_the_engine(tmp_path):
    done = build("sdist", tmp_path)
    assert done.returncode == 0, done.stderr
    [path] = tmp_path.glob("nnl-*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"cpp/CMakeLists.txt", "cpp/include/nnl/plan.h", "cpp/src/plan.cpp"} <= names
    assert {"cpp/include/nnl/version.h", "cpp/cmake/exports.map", "cpp/cmake/nnl.pc.in"} <= names
    assert {"cpp/python/bind.cpp", "cpp/cmake/find_onednn.py", "nnl/__init__.py"} <= names
    assert {"LICENSE", "README.md", "requirements-dev.txt", "tests/native/test_build.py"} <= names
    assert not [name for name in names if name.endswith((".so", ".pyc", ".o"))]
    assert path.stat().st_size < 10e6


def test_off_at_the_installation_leaves_the_engine_out_and_says_so(tmp_path):
    done = build("wheel", tmp_path, NNL_NATIVE="OFF")
    assert done.returncode == 0, done.stderr
    assert "NNL_NATIVE is off; installed without the native engine" in done.stdout
    name, files = wheel_in(tmp_path)
    assert name.endswith("-py3-none-any.whl")
    assert "nnl/ext/native/__init__.py" in files
    assert not [f for f in files if f.endswith(".so")]


def test_without_a_compiler_the_package_is_built_without_the_engine_and_says_so(tmp_path):
    done = build("wheel", tmp_path, CXX="/nowhere/c++")
    assert done.returncode == 0, done.stderr
    assert "the native engine could not be built, see above" in done.stdout
    name, files = wheel_in(tmp_path)
    assert name.endswith("-py3-none-any.whl")
    assert not [f for f in files if f.endswith(".so")]


def test_on_at_the_installation_makes_a_failing_build_an_error(tmp_path):
    done = build("wheel", tmp_path, CXX="/nowhere/c++", NNL_NATIVE="ON")
    assert done.returncode != 0
    assert not list(tmp_path.glob("*.whl"))
