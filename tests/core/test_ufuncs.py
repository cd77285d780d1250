# SPDX-License-Identifier: Apache-2.0
"""numpy's element-wise functions and len of a Variable or NdArray."""

import numpy as np
import pytest

import nnl as nn

VALUES = np.array([[0.5, 0.25, 0.75], [0.125, 1.0, 0.0625]], np.float32)
ABOVE = VALUES + 1  # where arccosh is defined
UNARY = """exp log sin cos tan sinh cosh tanh arcsin arccos arctan arcsinh arccosh arctanh floor
ceil isnan isinf logical_not absolute fabs sign sqrt square reciprocal negative positive""".split()
BINARY = ["add", "subtract", "multiply", "divide", "power"]
KINDS = pytest.mark.parametrize("make", [nn.Variable, nn.NdArray])


def values(y):
    return y.d if isinstance(y, nn.Variable) else y.data


@KINDS
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_numpy_are_those_of_nnl(make, name):
    x = ABOVE if name == "arccosh" else VALUES - 0.5 * (name in ("sign", "absolute", "floor"))
    x = np.where(x == 1, 0.5, x) if name == "arctanh" else x
    with nn.auto_forward():
        y = getattr(np, name)(make.from_numpy_array(x))
    assert type(y) is make
    np.testing.assert_allclose(values(y), getattr(np, name)(x), rtol=1e-6, atol=1e-7)


@KINDS
@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("number", [2, 0.5, np.float32(3), np.float64(0.5), np.int64(2)])
def test_numbers_of_numpy_on_both_sides(make, name, number):
    function, x = getattr(np, name), make.from_numpy_array(VALUES)
    with nn.auto_forward():
        for a, b in ((x, number), (number, x), (x, x)):
            want = function(*(VALUES if v is x else number for v in (a, b)))
            np.testing.assert_allclose(values(function(a, b)), want, rtol=1e-6)
        np.testing.assert_allclose(values(number * x), number * VALUES, rtol=1e-6)
        np.testing.assert_allclose(values(number - x), number - VALUES, rtol=1e-6)


def test_functions_of_numpy_are_part_of_the_graph():
    x = nn.Variable.from_numpy_array(VALUES, need_grad=True)
    y = np.exp(np.float32(2) * x)
    z = np.matmul(y, nn.Variable.from_numpy_array(VALUES.T.copy()))
    y.forward()
    y.backward()
    np.testing.assert_allclose(x.g, 2 * np.exp(2 * VALUES), rtol=1e-6)
    assert z.shape == (2, 2)


X, ARRAY = nn.Variable((2, 3)), nn.NdArray(2, 3)
WRAP = "wrap the array with nnl.NdArray.from_numpy_array or nnl.Variable.from_numpy_array"
INSTEAD = "write x.d for its values, or a function of nnl.functions"


def in_place(x):
    array = np.ones(3)
    array += x


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: np.cbrt(X), f"numpy.cbrt of a Variable: {INSTEAD}"),
        (lambda: np.maximum(X, 0), f"numpy.maximum of a Variable: {INSTEAD}"),
        (lambda: np.add.reduce(X), f"numpy.add.reduce of a Variable: {INSTEAD}"),
        (lambda: np.int64(3) // X, f"numpy.floor_divide of a Variable: {INSTEAD}"),
        (
            lambda: np.add(X, 1, out=np.ones(3)),
            "numpy.add of a Variable takes no out: it makes a n",
        ),
        (
            lambda: np.exp(ARRAY, where=True),
            "numpy.exp of a NdArray takes no where: it makes a new",
        ),
        (lambda: np.add(1, 1, out=X), "numpy.add of a Variable takes no out: it makes a new Varia"),
        (lambda: np.add(np.ones(3), X), f"numpy array + Variable: {WRAP}"),
        (lambda: in_place(X), f"numpy array + Variable: {WRAP}"),
        (lambda: np.ones((3, 2)) @ X, f"numpy array @ Variable: {WRAP}"),
        (lambda: np.float64(1) < X, "Variable > float64: F.greater_scalar(x, 1.0) compares the va"),
        (lambda: np.greater(X, X), "Variable > Variable: F.greater(x, y) compares the values"),
        (lambda: np.ones(3) == X, "Variable == ndarray: == tells whether two handles are the same"),
        (lambda: np.asarray(X, np.float32), f"numpy.array of a Variable: {INSTEAD}"),
        (lambda: len(nn.Variable()), "len(Variable): it has no axis"),
    ],
)
def test_what_numpy_may_not(call, text):
    with pytest.raises(TypeError) as e:
        call()
    assert str(e.value).startswith(text)


def test_an_array_is_equal_to_itself_alone():
    assert (np.ones(3) == ARRAY) is False and (np.float32(1) != ARRAY) is True


def test_len_is_the_first_size_and_a_variable_is_true():
    assert len(X) == len(ARRAY) == 2 and len(nn.Variable((0, 3))) == 0
    assert X and ARRAY and nn.Variable() and nn.Variable((0,)) and nn.NdArray()
