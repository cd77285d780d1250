# SPDX-License-Identifier: Apache-2.0
"""Arrays as other libraries give them: the values arrive by every way in, or it is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
from nnl.ext import native
from nnl.utils.data_iterator import data_iterator_simple

BASE = np.arange(6).reshape(2, 3)
CONTEXTS = ["numpy:float", "cpu:float"] if native.library() is not None else ["numpy:float"]
TYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "q", "Q", "?"]


@pytest.fixture(autouse=True, params=CONTEXTS)
def _context(request: Any) -> Any:
    with nn.context_scope(nn.Context([request.param])), nn.parameter_scope("", {}):
        yield


def static(x: nn.Variable) -> Any:
    y = x * 2
    y.forward()
    return y.d


def feed(a: Any) -> Any:
    x = nn.Variable((2, 3))
    x.d = a
    return static(x)


def data(a: Any) -> Any:
    x = nn.Variable((2, 3))
    x.data.data = a
    return static(x)


def from_array(a: Any) -> Any:
    return static(nn.Variable.from_numpy_array(a))


def on_arrays(a: Any) -> Any:
    return (nn.NdArray.from_numpy_array(a) * 2).data


def define_by_run(a: Any) -> Any:
    with nn.auto_forward():
        return (nn.Variable.from_numpy_array(a) * 2).d


def compiled(a: Any) -> Any:
    return nn.compile(lambda x: x * 2)(nn.Variable.from_numpy_array(a)).d


def coexecuted(a: Any) -> Any:
    with nn.auto_forward():
        return nn.coexecute(lambda x: x * 2)(nn.Variable.from_numpy_array(a)).d


def item(a: Any) -> Any:
    x = nn.NdArray(2, 3)
    x[...] = a
    return (x * 2).data


def variable_item(a: Any) -> Any:
    x = nn.Variable((2, 3))
    x[...] = a
    return static(x)


def parameter(a: Any) -> Any:
    nn.clear_parameters()
    return static(nn.parameter.get_parameter_or_create("p", (2, 3), a))


def initializer(a: Any) -> Any:
    nn.clear_parameters()
    return static(nn.parameter.get_parameter_or_create("q", (2, 3), lambda shape: a))


def start_gradient(a: Any) -> Any:
    x = nn.Variable((2, 3), need_grad=True)
    y = x * 2
    y.forward()
    y.backward(a)
    return x.g


def gradient(a: Any) -> Any:
    x = nn.Variable((2, 3), need_grad=True)
    x.g = a
    return x.g * 2.0


def program(a: Any, path: Path = Path("foreign.nnlp")) -> Any:
    x = nn.Variable((2, 3))
    nn.save_program(path, {"y": x * 2}, {"x": x})
    return nn.load_program(path).run(x=a)["y"]


WAYS = [
    *(feed, data, from_array, on_arrays, define_by_run, compiled, coexecuted, item),
    *(variable_item, parameter, initializer, start_gradient, gradient, program),
]
each_way = pytest.mark.parametrize("way", WAYS, ids=[w.__name__ for w in WAYS])


def right(way: Callable[[Any], Any], a: Any, values: Any) -> None:
    got = np.asarray(way(a))
    assert got.dtype.isnative
    np.testing.assert_array_equal(got, 2.0 * np.asarray(values, np.float64))


@each_way
def test_every_type_in_either_order_of_bytes(
    way: Callable[[Any], Any], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in TYPES:
        for order in "<>":
            a = BASE.astype(order + name)
            right(way, a, a)


@each_way
def test_strides_read_only_mapped_and_foreign_arrays(
    way: Callable[[Any], Any], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    mapped = np.memmap("mapped", ">f4", "w+", shape=(2, 3))
    mapped[...] = BASE
    mapped.flush()
    unaligned = np.zeros(25, np.uint8)[1:].view(np.float32).reshape(2, 3)
    unaligned[...] = BASE
    fixed = BASE.astype(np.float32)
    fixed.flags.writeable = False
    for a in (
        np.arange(24, dtype=">f4").reshape(4, 6)[::2, ::2],
        np.arange(6, dtype=np.float32).reshape(2, 3)[::-1, ::-1],
        np.asfortranarray(BASE.astype(">f8")),
        np.broadcast_to(np.arange(3, dtype=">i2"), (2, 3)),
        np.zeros((2, 3), [("a", ">f4"), ("b", "i2")])["a"] + 3,
        np.memmap("mapped", ">f4", "r", shape=(2, 3)),
        np.ma.array(BASE.astype(">f4")),
        unaligned,
        fixed,
    ):
        right(way, a, a)
    torch = pytest.importorskip("torch")
    right(way, torch.arange(6.0).reshape(3, 2).t(), BASE.reshape(3, 2).T)


COMPLEX, MASKED = BASE.astype(np.complex64), np.ma.array(BASE, mask=BASE == 1)


@each_way
@pytest.mark.parametrize(
    ("a", "text"),
    [
        (BASE.astype(np.longdouble), r"got array of float128, wanted .*: astype\(np.float64\) "),
        (COMPLEX, "got array of complex64, wanted "),
        (BASE.astype("M8[s]"), r"got array of datetime64\[s\], wanted "),
        (BASE.astype(str), r"got array of <U\d+, wanted "),
        (np.zeros((2, 3), "V4"), r"got array of \|V4, wanted "),
        (MASKED, r"got array with masked elements, wanted .*: filled\(0\) gives them a value"),
    ],
    ids=["longdouble", "complex", "time", "text", "void", "masked"],
)
def test_what_no_array_holds_is_refused(
    way: Callable[[Any], Any], a: Any, text: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError, match=text):
        way(a)


def test_types_of_ml_dtypes_other_than_bfloat16_are_refused() -> None:
    types = pytest.importorskip("ml_dtypes")
    right(feed, BASE.astype(types.bfloat16), BASE)
    for name in ("float8_e4m3fn", "float8_e5m2", "int4"):
        with pytest.raises(TypeError, match=f"got array of {name}, wanted"):
            feed(BASE.astype(getattr(types, name)))


def test_tensors_with_a_gradient_say_what_to_do() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"got Tensor, wanted .*: .*detach\(\)"):
        feed(torch.zeros(2, 3, requires_grad=True))


def test_a_dtype_that_is_asked_for_is_in_our_order() -> None:
    a = nn.NdArray.from_numpy_array(BASE)
    assert a.get_data("r", dtype=">f4").dtype == np.dtype("f4")
    with pytest.raises(TypeError, match="cast: dtype is .*longdouble.*, wanted a type of numpy"):
        a.cast(np.longdouble)


def test_batches_of_either_order() -> None:
    it = data_iterator_simple(lambda i: (BASE.astype(">f4")[i],), 2, 2, shuffle=False)
    right(feed, it.next()[0], BASE)
    it.close()
    it = data_iterator_simple(lambda i: (MASKED[i],), 2, 2, shuffle=False)
    with pytest.raises(ValueError, match="has samples with masked elements"):
        it.next()


def test_a_masked_index_is_refused() -> None:
    with pytest.raises(IndexError, match="an array with masked elements as an index"):
        nn.NdArray(6)[np.ma.array([1, 2], mask=[0, 1])]
