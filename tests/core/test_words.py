# SPDX-License-Identifier: Apache-2.0
"""Calls that are wrong in ways users have found: the text names function, argument and remedy."""

from types import SimpleNamespace

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.arrays.spec import ShapeError
from nnl.core.settings.context import using

X = nn.Variable((4, 6, 8, 8))
W = nn.Variable((3, 6, 3, 3))
V = nn.Variable((2, 2))
NP = np.ones((2, 2))
HUGE = (10**9, 10**9)
WRAP = "wrap the array with nnl.NdArray.from_numpy_array or nnl.Variable.from_numpy_array"


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: F.relu(X, outputs=5), TypeError, "relu: outputs is int, wanted nnl.Variable or"),
        (lambda: F.relu(X, outputs=[5]), TypeError, "relu: outputs is int, wanted nnl.Variable"),
        (lambda: F.reshape(X, (-1,), outputs="a"), TypeError, "reshape: outputs is str, wanted"),
        (lambda: F.add_n(X, None), TypeError, "add_n: x is NoneType, wanted nnl.Variable or"),
        (lambda: F.concatenate(None, X), TypeError, "concatenate: x is NoneType, wanted"),
        (lambda: F.stack(X, None), TypeError, "stack: x is NoneType, wanted nnl.Variable or"),
        (
            lambda: F.meshgrid(nn.Variable((2,)), None),
            TypeError,
            "meshgrid: x is NoneType, wanted nnl.Variable",
        ),
        (lambda: F.arange(0, 1e300), ValueError, "arange: 1e+300 numbers from 0.0 to 1e+300 are"),
        (lambda: F.linspace(0, 1, 10**18), ShapeError, "linspace: the result float32[10000000000"),
        (
            lambda: F.rand(shape=(10**10, 10**10)),
            ShapeError,
            "rand: the result float32[10000000000, ",
        ),
        (
            lambda: F.interpolate(X, output_size=-1),
            TypeError,
            "interpolate: output_size is -1, wanted an int for each spatial axis: (-1, -1)",
        ),
        (
            lambda: F.interpolate(X, scale=2),
            TypeError,
            "interpolate: scale is 2, wanted a number for each spatial axis: (2, 2)",
        ),
        (lambda: F.interpolate(X, scale="a"), TypeError, "interpolate: scale is 'a', wanted a seq"),
        (lambda: F.interpolate(X, scale=(np.nan, 2)), ValueError, "interpolate: scale is (nan, 2)"),
        (lambda: F.interpolate(X, scale=(1e300, 2)), ValueError, "interpolate: scale is (1e+300,"),
        (
            lambda: F.convolution(X, W, pad=HUGE),
            ShapeError,
            "convolution: the result float32[4, 3, 2",
        ),
        (
            lambda: F.convolution(X, W, stride=(10**18, 1)),
            ValueError,
            f"convolution: stride is ({10**18}, 1), wanted at most 2147483647 each",
        ),
        (
            lambda: F.max_pooling(X, (2, 2), stride=(10**30, 1)),
            ValueError,
            f"max_pooling: stride is ({10**30}, 1), wanted 64 bits at most",
        ),
        (lambda: F.unpooling(X, HUGE), ShapeError, "unpooling: the result float32[4, 6, 80"),
        (
            lambda: F.slice(X, start="bad"),
            TypeError,
            "slice: start is 'bad', wanted an int or None for each axis",
        ),
        (lambda: F.slice(X, stop=3), TypeError, "slice: stop is 3, wanted an int or None for each"),
        (lambda: nn.Variable(NP), TypeError, "Variable: shape is a numpy array float64[2, 2], "),
        (lambda: nn.Variable(V), TypeError, "Variable: shape is a Variable, wanted a sequence of"),
        (lambda: nn.NdArray(nn.NdArray()), TypeError, "NdArray: shape is a NdArray, wanted a seq"),
        (lambda: nn.Variable((10**30,)), ShapeError, "Variable: an array of shape (1000000000"),
        (lambda: NP + V, TypeError, f"numpy array + Variable: {WRAP}"),
        (lambda: NP / V.data, TypeError, f"numpy array / NdArray: {WRAP}"),
        (lambda: NP @ V, TypeError, f"numpy array @ Variable: {WRAP}"),
        (lambda: V @ NP, TypeError, f"Variable @ numpy array: {WRAP}"),
        (lambda: V * NP, TypeError, f"Variable * numpy array: {WRAP}"),
    ],
)
def test_texts(call, error, text, dynamic):
    with nn.auto_forward(dynamic), pytest.raises(error) as e:
        call()
    assert type(e.value) is error and str(e.value).startswith(text)


def test_words_of_the_standard_library_do_not_come_out():
    """A kernel that is given what it cannot take."""
    from nnl.ext import native

    lib = native.library()
    if lib is None:
        pytest.skip("no native engine")
    with pytest.raises(MemoryError) as e:
        lib.Plan([-1], 1 << 62)
    assert "std::" not in str(e.value)


def test_memory_that_runs_out_names_the_function():
    def apply(op, attrs, inputs):
        raise MemoryError("the machine has no more")

    full = using(interpreter=SimpleNamespace(apply=apply))
    text = (
        r"^relu in block: not enough memory for the result: the machine has no more "
        r"\(documentation: guides/profiling#memory\)$"
    )
    with full, nn.parameter_scope("block"), pytest.raises(MemoryError, match=text):
        F.relu(X)


def test_nothing_to_update_is_said_once(caplog):
    import nnl.solvers as S
    from nnl.core.arguments.warn_once import WARNED

    WARNED.clear()
    for _ in range(2):
        s = S.Sgd(0.1)
        s.update()
        s.set_parameters({})
        s.update()
    assert [r.getMessage() for r in caplog.records] == [
        "Sgd.update: there are no parameters: call set_parameters first",
        "Sgd.set_parameters: param_dict is empty: call it when the network has been built",
    ]


@pytest.mark.parametrize("clear", [False, True])
def test_a_forgotten_forward_is_said_once(caplog, clear):
    import nnl.solvers as S
    from nnl.core.arguments.warn_once import WARNED

    WARNED.clear()
    w = nn.Variable.from_numpy_array(np.ones(2, np.float32), need_grad=True)
    loss, other = F.sum(w * w), F.sum(w)
    s = S.Sgd(0.1)
    s.set_parameters({"w": w})

    def backward():
        s.zero_grad()
        loss.backward(clear_buffer=clear)
        loss.backward(0.5, clear_buffer=clear)  # one more, of the same result

    for _ in range(2):
        loss.forward(clear_no_need_grad=clear)
        backward()
        s.update()
    nn.forward_all([loss, other])
    backward()
    s.update()
    (loss + other).forward()  # computes it, too
    backward()
    assert caplog.records == []
    for _ in range(2):
        s.update()
        backward()
    assert [r.getMessage() for r in caplog.records] == [
        "backward: parameters were updated after the latest forward(), so these gradients are "
        "those of an old result: call forward() before every backward()"
    ]


def test_nnl_convert_has_its_own_name(capsys):
    from nnl.cli.main import convert_main, main

    both = {"nnl-convert": convert_main, "nnl convert": lambda a: main(["convert", *a])}
    for name, call in both.items():
        with pytest.raises(SystemExit):
            call(["--help"])
        assert capsys.readouterr().out.startswith(f"usage: {name}")
        assert call(["no such file.nnp", "out.onnx"]) == 3
        assert capsys.readouterr().err.startswith(name)
