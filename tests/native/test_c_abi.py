# SPDX-License-Identifier: Apache-2.0
"""The C interface, as other languages meet it: through the header, and through ctypes."""

import ctypes
import re
import shutil
import subprocess
import threading
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_void_p

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.cli.networks import cpp
from tests.native.kernels import require_library

INPUT, OUTPUT = 0, 1


class Tensor(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("dtype", c_int),
        ("rank", c_size_t),
        ("shape", POINTER(c_int64)),
        ("bytes", c_size_t),
        ("data", c_void_p),
    ]


@pytest.fixture(scope="module")
def lib():
    require_library()
    found = ctypes.CDLL(str(next((cpp.folder() / "lib").glob("libnnl.so.*"))))
    for name in ("nnl_version", "nnl_error", "nnl_program_name"):
        getattr(found, name).restype = c_char_p
    for name in ("nnl_program_count", "nnl_count"):
        getattr(found, name).restype = c_size_t
    return found


@pytest.fixture
def path(tmp_path):
    with nn.parameter_scope("", {}):
        x = nn.Variable((2, 3))
        y = F.relu(PF.affine(x, 4, name="fc"))
        nn.save_program(tmp_path / "a.nnlp", programs={"f": ({"y": y}, {"x": x}), "g": x * 2})
    return str(tmp_path / "a.nnlp").encode()


def opened(lib, path):
    file = c_void_p()
    assert lib.nnl_open(path, byref(file)) == 0, lib.nnl_error()
    return file


def made(lib, file, program):
    model = c_void_p()
    assert lib.nnl_make(file, program, byref(model)) == 0, lib.nnl_error()
    return model


def get(lib, model, role, index=0):
    t = Tensor()
    assert lib.nnl_get(model, role, c_size_t(index), byref(t)) == 0, lib.nnl_error()
    return t


def values(t):
    shape = tuple(t.shape[: t.rank])
    return np.ctypeslib.as_array(ctypes.cast(t.data, POINTER(ctypes.c_float)), shape)


def test_a_program_runs(lib, path):
    x = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    want = nn.load_program(path.decode()).run("f", x=x)["y"]
    file = opened(lib, path)
    assert lib.nnl_program_count(file) == 2
    assert [lib.nnl_program_name(file, c_size_t(i)) for i in range(3)] == [b"f", b"g", None]
    model = made(lib, file, b"f")
    lib.nnl_close(file)  # the model goes on
    assert (lib.nnl_count(model, INPUT), lib.nnl_count(model, OUTPUT)) == (1, 1)
    given, got = get(lib, model, INPUT), get(lib, model, OUTPUT)
    assert (given.name, given.dtype, given.bytes, got.name) == (b"x", 0, 24, b"y")
    values(given)[:] = x
    assert lib.nnl_run(model) == 0
    assert values(got).tobytes() == want.tobytes()
    mine, out = x.copy(), np.zeros((2, 4), np.float32)
    assert lib.nnl_bind(model, INPUT, c_size_t(0), c_void_p(mine.ctypes.data), c_size_t(24)) == 0
    assert lib.nnl_bind(model, OUTPUT, c_size_t(0), c_void_p(out.ctypes.data), c_size_t(32)) == 0
    assert get(lib, model, INPUT).data == mine.ctypes.data
    assert lib.nnl_run(model) == 0 and out.tobytes() == want.tobytes()
    index = c_size_t(7)
    assert lib.nnl_find(model, OUTPUT, b"y", byref(index)) == 0 and index.value == 0
    lib.nnl_free(model)


def test_a_model_that_two_threads_run_at_once_says_so_and_goes_on(lib, tmp_path):
    with nn.parameter_scope("", {}):
        x = y = nn.Variable((768, 768))
        for k in range(4):
            y = PF.affine(y, 768, name=f"fc{k}")
        nn.save_program(tmp_path / "a.nnlp", {"y": y}, {"x": x})
    file = opened(lib, str(tmp_path / "a.nnlp").encode())
    model = made(lib, file, b"main")
    said, barrier = [], threading.Barrier(2)

    def work():
        barrier.wait(30)
        for _ in range(5):  # of tens of milliseconds
            if lib.nnl_run(model):
                said.append(lib.nnl_error().decode())

    threads = [threading.Thread(target=work) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert set(said) == {
        "this model is running already: a Model has one thread at a time, make one for each of the "
        "same ModelFile"
    }
    assert lib.nnl_run(model) == 0
    lib.nnl_free(model), lib.nnl_close(file)


def test_parameters_are_saved_and_loaded(lib, path, tmp_path):
    file, target = opened(lib, path), str(tmp_path / "p.h5").encode()
    assert lib.nnl_save_parameters(file, target) == 0
    assert lib.nnl_load_parameters(file, target) == 0
    with nn.parameter_scope("", {}):
        nn.load_parameters(target.decode())
        assert list(nn.get_parameters()) == ["fc/affine/W", "fc/affine/b"]
    lib.nnl_close(file)


def test_what_is_wrong_is_told(lib, path):
    file, model = c_void_p(1), c_void_p()

    def fails(status, text):
        assert status == 1
        assert re.search(text, lib.nnl_error().decode()), lib.nnl_error()

    fails(lib.nnl_open(b"missing.nnlp", byref(file)), "^missing.nnlp: No such file")
    assert file.value is None
    fails(lib.nnl_open(None, byref(file)), "^nnl_open: path is NULL$")
    fails(lib.nnl_open(path, None), "^nnl_open: file is NULL$")
    file = opened(lib, path)
    fails(lib.nnl_make(file, None, byref(model)), "has the programs 'f', 'g': say which one")
    fails(lib.nnl_make(file, b"h", byref(model)), "has the programs 'f', 'g', not 'h'")
    fails(lib.nnl_make(None, b"f", byref(model)), "^nnl_make: file is NULL$")
    fails(lib.nnl_load_parameters(file, b"p.npz"), "^p.npz: No such file")
    fails(lib.nnl_save_parameters(file, b"p.npz"), "^p.npz: files of parameters are ")
    fails(lib.nnl_set_threads(0), "^set_threads: n is 0, wanted 1 or more$")
    model, t, n = made(lib, file, b"f"), Tensor(), c_size_t()
    fails(lib.nnl_get(model, INPUT, c_size_t(1), byref(t)), "index is 1, the model has 1 inputs")
    fails(lib.nnl_get(model, 2, c_size_t(0), byref(t)), "^nnl_get: role is neither NNL_INPUT nor")
    fails(lib.nnl_get(model, INPUT, c_size_t(0), None), "^nnl_get: tensor is NULL$")
    fails(lib.nnl_find(model, INPUT, b"z", byref(n)), "the model has the inputs 'x', not 'z'")
    fails(
        lib.nnl_bind(model, INPUT, c_size_t(0), c_void_p(64), c_size_t(23)),
        r"^nnl_bind: x is float32\[2, 3\], 24 bytes, got 23$",
    )
    fails(lib.nnl_bind(model, INPUT, c_size_t(0), None, c_size_t(24)), "x cannot be bound to noth")
    fails(lib.nnl_run(None), "^nnl_run: model is NULL$")
    seen = []
    thread = threading.Thread(target=lambda: seen.append(lib.nnl_error()))
    thread.start()
    thread.join()
    assert seen == [b""]  # each thread has its own
    assert lib.nnl_count(None, INPUT) == 0 and lib.nnl_program_count(None) == 0
    for f, x in ((lib.nnl_free, model), (lib.nnl_close, file), (lib.nnl_free, None)):
        f(x)


def test_the_version_is_that_of_the_package(lib):
    assert lib.nnl_version().decode() == nn.__version__


def test_the_header_is_c99(lib, tmp_path):
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    header = (cpp.folder() / "include/nnl/nnl.h").read_text()
    used = sorted(set(re.findall(r"\b(nnl_\w+)\(", re.sub(r"/\*.*?\*/", "", header, flags=re.S))))
    assert 15 <= len(used) <= 20
    lines = "\n".join(f"  p[{i}] = (void (*)(void)){name};" for i, name in enumerate(used))
    (tmp_path / "main.c").write_text(
        '#include "nnl/nnl.h"\n#include <stdio.h>\n'
        f"int main(void) {{\n  void (*p[{len(used)}])(void);\n{lines}\n"
        '  return p[0] && puts(nnl_version()) < 0;\n}\n'
    )  # fmt: skip
    folder = cpp.folder()
    command = [
        "gcc", "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "main.c",
        f"-I{folder}/include", f"-L{folder}/lib", "-lnnl", f"-Wl,-rpath,{folder}/lib", "-o", "main",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True)
    assert done.stdout.strip() == nn.__version__, done.stderr
