# SPDX-License-Identifier: Apache-2.0
"""Contexts of the CUDA backend on a machine that lacks what they need."""

import importlib.util
import subprocess
import sys

import pytest

import nnl as nn
from nnl.ext import cuda
from nnl.ext_utils import (
    get_extension_context,
    import_extension_module,
    list_extensions,
)


@pytest.fixture
def lacking(monkeypatch):
    """Says which of driver, CuPy and front end are there."""

    def lack(driver, cupy, front_end):
        def load(name):
            if not driver:
                raise OSError(f"{name}: cannot open shared object file")

        there = {"cupy": cupy, "cudnn": front_end}
        monkeypatch.setattr(cuda.ctypes, "CDLL", load)
        monkeypatch.setattr(cuda, "find_spec", lambda name: there[name] or None)

    return lack


@pytest.mark.parametrize(
    "there, name, text",
    [
        (
            (False, False, False),
            "cudnn",
            r"'cudnn' needs NVIDIA's driver \(libcuda.so.1 does not load\), CuPy \(pip install "
            r"'nnl\[cuda13\]'\), cuDNN's front end \(pip install 'nnl\[cuda13\]'\); "
            r"get_extension_context\('cpu'\) runs without "
            r"\(documentation: cuda#installing\)",
        ),
        ((True, False, True), "cudnn", r"'cudnn' needs CuPy \(pip install 'nnl\[cuda13\]'\);"),
        ((True, True, False), "cudnn", r"'cudnn' needs cuDNN's front end \(pip"),
        ((False, True, False), "cuda", r"'cuda' needs NVIDIA's driver \(libcuda.so.1 does not"),
    ],
)
def test_the_error_says_what_is_missing_and_how_to_get_it(lacking, there, name, text):
    before = nn.get_current_context().backend
    lacking(*there)
    with pytest.raises(NotImplementedError, match=text):
        get_extension_context(name)
    with pytest.raises(NotImplementedError, match=text):
        nn.Context([f"{name}:float"])
    assert nn.get_current_context().backend == before


def test_a_device_that_is_not_there_is_named(lacking, monkeypatch):
    lacking(True, True, True)
    monkeypatch.setattr(cuda, "get_device_count", lambda: 2)
    with pytest.raises(NotImplementedError, match="device_id is 2, and this machine has 2 CUDA"):
        get_extension_context("cudnn", device_id="2")
    with pytest.raises(ValueError, match="'cudnn': device_id is 'gpu', wanted a number as a str"):
        get_extension_context("cudnn", device_id="gpu")


def test_an_unknown_type_configuration_is_named():
    with pytest.raises(NotImplementedError, match="type_config 'fp4' is not available here"):
        get_extension_context("cudnn", type_config="fp4")


def test_without_a_driver_there_are_no_devices(lacking):
    lacking(False, True, True)
    assert cuda.get_device_count() == 0 and cuda.get_devices() == []


def test_the_names_of_nnabla_are_known():
    assert import_extension_module("cuda") is import_extension_module("cudnn") is cuda


def test_an_extension_that_lacks_something_is_not_listed(lacking):
    lacking(False, True, True)
    assert [n for n in list_extensions() if n != "opencl"] == ["cpu", "numpy"]


def test_importing_nnl_and_the_backend_imports_neither_cupy_nor_cudnn():
    code = (
        "import sys, nnl, nnl.ext.device.library, nnl.ext.cuda.device;"
        "assert not {'cupy', 'cudnn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed")
def test_this_machine_says_that_cupy_is_missing():
    assert any(s.startswith("CuPy") for s in cuda.missing("cuda"))
