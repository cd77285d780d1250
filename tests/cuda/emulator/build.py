# SPDX-License-Identifier: Apache-2.0
"""Builds what stands in for NVIDIA's driver, CUDA's runtime and libraries, and CuPy's module on it.

CuPy's own module for the runtime has that linked into it, so it is translated again from CuPy's
sources. Everything else of CuPy, and NVRTC, is as it was installed.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
CYTHON = "3.2.4"  # with which CuPy 14.2.0's wheels are made; another shares no classes with them
FLAGS = (
    "-std=c++20", "-O3", "-march=native", "-fPIC", "-Wall", "-Wextra", "-Werror",
    "-fno-strict-aliasing",  # registers are bytes
    "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
)  # fmt: skip
DIRECTIVES = [
    "embedsignature=True", "c_api_binop_methods=True", "binding=False", "warn.deprecated.IF=False",
    "freethreading_compatible=True",
]  # fmt: skip
CONSTANTS = (
    "CUPY_CUDA_VERSION=13000,CUPY_HIP_VERSION=0,CUPY_USE_CUDA_PYTHON=False,"
    f"CUPY_CUFFT_STATIC=False,CUPY_CYTHON_VERSION={CYTHON}"
)
# Libraries, CuPy's module that calls each, and what functions answer that are not here.
LIBRARIES = {
    "libcudart.so.13": ("", 801),
    "libcublas.so.13": ("cupy_backends/cuda/libs/cublas", 15),
    "libcublasLt.so.13": ("", 15),  # cuBLAS's, for those who look for it
    "libcusolver.so.12": ("cupy_backends/cuda/libs/cusolver", 9),
    "libcusparse.so.12": ("cupy_backends/cuda/libs/cusparse", 10),
    "libcufft.so.12": ("cupy/cuda/cufft", 16),
    "libnccl.so.2": ("cupy_backends/cuda/libs/nccl", 5),
    "libnvJitLink.so.13": ("", 0),  # cuSOLVER's, for those who look for it
}


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("EMULATOR_CACHE") or Path(base) / "nnl" / "emulator")


def cuda_headers() -> Path:
    """The folder with cuda_runtime_api.h and all that it includes, of a toolkit or of wheels."""
    homes = [os.environ.get("CUDA_HOME", ""), packages() / "nvidia/cu13", "/usr/local/cuda"]
    for home in filter(None, homes):
        if (Path(home) / "include/crt/host_config.h").exists():
            return Path(home) / "include"
    raise SystemExit(
        "the emulator needs CUDA's headers: pip install nvidia-cuda-runtime nvidia-cuda-crt, or "
        "let CUDA_HOME say where a toolkit is"
    )


def cupy_sources() -> Path:
    """CuPy's sources: EMULATOR_CUPY, or unpacked from its package."""
    given = os.environ.get("EMULATOR_CUPY")
    if given:
        return Path(given)
    from cupy import __version__

    folder = cache_folder() / f"cupy-{__version__}"
    if not folder.exists():
        cache_folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_folder()) as made:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary"]
            pip = [*command, "cupy", f"cupy=={__version__}", "-d", made]
            run(pip, env={**os.environ, "CUPY_INSTALL_USE_STUB": "1"})  # pip asks what it needs
            (archive,) = Path(made).glob("*.tar.gz")
            run(["tar", "-xzf", archive, "-C", made])
            archive.unlink()
            (unpacked,) = Path(made).iterdir()
            os.replace(unpacked, folder)
    return folder


def run(command: list[str | Path], **kw: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **kw)  # type: ignore[call-overload]
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return str(done.stdout)


def sources() -> list[Path]:
    return sorted([*HERE.glob("*.cpp"), *HERE.glob("*.h")])


def native(flags: Iterable[str] = FLAGS) -> str:
    """What -march=native stands for on this machine, and the rest of what g++ defines."""
    return run(["g++", *flags, "-E", "-dM", "-xc++", "/dev/null"])


def key() -> str:
    texts = [CYTHON, CONSTANTS, sys.version, native(), *(p.name + p.read_text() for p in sources())]
    return hashlib.sha256("\0".join([*texts, Path(__file__).read_text()]).encode()).hexdigest()[:16]


def compile_one(source: Path, folder: Path) -> Path:
    made = folder / f"{source.stem}.o"
    run(["g++", *FLAGS, "-I", cuda_headers(), "-c", source, "-o", made])
    return made


def symbols(library: Path, kind: str) -> set[str]:
    lines = run(["nm", "-D", f"--{kind}-only", library]).splitlines()
    return {line.split()[-1].split("@")[0] for line in lines}


def link_driver(objects: list[Path], folder: Path) -> Path:
    """One library with all functions; it shows nothing else, which NVRTC might take for its own."""
    driver, script = folder / "libcuda.so.1", folder / "driver.map"
    script.write_text("{ global: cu*; nccl*; emulator_*; local: *; };\n")
    run([
        "g++", "-shared", *objects, "-Wl,-soname,libcuda.so.1", f"-Wl,--version-script,{script}",
        "-o", driver,
    ])  # fmt: skip
    return driver


def link_library(name: str, wanted: set[str], driver: Path) -> None:
    """A library by which all wanted functions are found: the driver's, and some that refuse."""
    folder, answer = driver.parent, LIBRARIES[name][1]
    stubs, script = folder / f"{name}.c", folder / f"{name}.map"
    missing = sorted(wanted - symbols(driver, "defined"))
    stubs.write_text("".join(f"int {f}(void) {{ return {answer}; }}\n" for f in missing))
    script.write_text(f"{name} {{ global: *; }};\n")
    run([
        "gcc", "-shared", "-fPIC", stubs, "-Wl,--no-as-needed", driver, "-Wl,-rpath,$ORIGIN",
        f"-Wl,-soname,{name}", f"-Wl,--version-script,{script}", "-o", folder / name,
    ])  # fmt: skip


def translate_runtime(folder: Path) -> Path:
    """CuPy's module for CUDA's runtime as an object file."""
    cupy, made = cupy_sources(), folder / "runtime.cpp"
    with tempfile.TemporaryDirectory() as tools:
        environment = dict(os.environ)
        cython = find_spec("Cython")
        if cython is None or _version() != CYTHON:
            pip = [sys.executable, "-m", "pip", "install", "-q", "--target", tools]
            run([*pip, f"Cython=={CYTHON}"])
            environment["PYTHONPATH"] = tools
        options = [part for d in DIRECTIVES for part in ("-X", d)]
        run(
            [
                sys.executable, "-m", "cython", "--cplus", "-3", "-E", CONSTANTS, *options,
                "-o", made, "cupy_backends/cuda/api/runtime.pyx",
            ],
            cwd=cupy, env=environment,
        )  # fmt: skip
    places = [sysconfig.get_paths()["include"], cupy / "cupy_backends", cuda_headers()]
    places.append(cupy / "cupy_backends/cuda/api")
    include = [part for p in places for part in ("-I", p)]
    run(["g++", "-std=c++17", "-O1", "-fPIC", "-w", *include, "-c", made, "-o", folder / "r.o"])
    return folder / "r.o"


def _version() -> str:
    from importlib.metadata import version

    return version("Cython")


def build() -> Path:
    """The folder with the libraries; built when its sources have changed."""
    packages()
    done = cache_folder() / key()
    if done.exists():
        return done
    print("the emulated GPU is built, which takes a minute", file=sys.stderr)
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder()) as made:
        folder = Path(made) / "new"
        folder.mkdir()
        with ThreadPoolExecutor() as pool:
            module = pool.submit(translate_runtime, folder)
            files = [p for p in sources() if p.suffix == ".cpp" and "test" not in p.stem]
            objects = list(pool.map(lambda p: compile_one(p, folder), files))
        driver, raw = link_driver(objects, folder), folder / "raw.so"
        run(["g++", "-shared", module.result(), "-o", raw])
        for name, (user, _) in LIBRARIES.items():
            start = name.split(".")[0].removeprefix("lib").replace("cudart", "cuda")
            found = next(packages().glob(f"{user}.*.so")) if user else raw
            wanted = {s for s in symbols(found, "undefined") if s.startswith(start)}
            link_library(name, wanted, driver)
        run([
            "g++", "-shared", module.result(), folder / "libcudart.so.13", driver,
            "-Wl,-rpath,$ORIGIN", "-o", folder / "runtime.so",
        ])  # fmt: skip
        for p in [
            *folder.glob("*.o"),
            *folder.glob("*.map"),
            *folder.glob("*.c"),
            raw,
            folder / "runtime.cpp",
        ]:
            p.unlink()
        if not done.exists():  # another process may have been faster
            os.replace(folder, done)
    return done


def packages() -> Path:
    """The folder in which CuPy's packages are; found without importing CuPy."""
    spec = find_spec("cupy_backends")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the emulator needs CuPy: make test-emulated installs it")
    return Path(next(iter(spec.submodule_search_locations))).parent
