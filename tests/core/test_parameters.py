# SPDX-License-Identifier: Apache-2.0
"""The parameter registry. Expected values were tried in NNabla 1.39."""

import numpy as np

import nnl as nn
from nnl import parameter
from nnl.parameter import get_parameter, get_parameter_or_create, pop_parameter, set_parameter


def ones(shape):
    return np.ones(shape, np.float32)


def names(**kw):
    return list(nn.get_parameters(grad_only=False, **kw))


def test_names_are_relative_to_the_current_scope_and_slashes_nest():
    with nn.parameter_scope("a"):
        get_parameter_or_create("w", (2,), ones)
        with nn.parameter_scope("b/c"):
            get_parameter_or_create("v", (3,), ones, need_grad=False)
            assert names() == ["v"]
        assert list(nn.get_parameters()) == ["w"]  # those that need a gradient
        assert names() == ["w", "b/c/v"]
        assert names(path="p") == ["p/w", "p/b/c/v"]
    assert names() == ["a/w", "a/b/c/v"]
    assert get_parameter("a/w") is not None and get_parameter("w") is None
    assert get_parameter_or_create("a/w", (2,)) == get_parameter("a/w")
    given = {}
    assert nn.get_parameters(given) is given and list(given) == ["a/w"]


def test_clear_parameters_is_relative_to_the_current_scope():
    get_parameter_or_create("a/w", (2,))
    get_parameter_or_create("a/b/v", (2,))
    with nn.parameter_scope("a/b"):
        nn.clear_parameters()
    assert names() == ["a/w"]
    nn.clear_parameters()
    assert names() == []


def test_a_scope_may_be_opened_inside_a_given_one():
    with nn.parameter_scope("keep") as scope:
        get_parameter_or_create("k", (1,))
    own = {}
    with nn.parameter_scope("inner", scope):
        get_parameter_or_create("k2", (1,))
    with nn.parameter_scope("sub", own):
        get_parameter_or_create("k3", (1,))
    assert names() == ["keep/k", "keep/inner/k2"]
    assert list(own) == ["sub"]


def test_the_scope_is_left_when_its_block_raises():
    outer = nn.get_current_parameter_scope()
    try:
        with nn.parameter_scope("a"):
            raise KeyError
    except KeyError:
        pass
    assert nn.get_current_parameter_scope() is outer is parameter.root_scope


def test_a_call_returns_an_unlinked_handle_of_the_registered_parameter():
    w = get_parameter_or_create("w", (2,), ones)
    registered = nn.get_parameters()["w"]
    assert w == registered and w is not registered and w.name == "w"
    w.d[0] = 42
    w.g = 3
    np.testing.assert_array_equal(registered.d, [42, 1])
    np.testing.assert_array_equal(registered.g, [3, 3])
    w.d = np.array([1, 2])  # a new dtype too
    assert registered.d.dtype == np.int64


def test_need_grad_of_the_parameter_and_of_the_handle():
    def flags(**kw):
        handle = get_parameter_or_create("w", (2,), ones, **kw)
        return handle.need_grad, get_parameter("w").need_grad

    assert flags() == (True, True)
    assert flags(as_need_grad=False) == (False, True)
    assert flags(need_grad=False) == (False, False)
    assert flags() == (True, True)  # a call sets the flag again
    with nn.no_grad():
        assert flags() == (False, True)
        assert nn.Variable((2,)).need_grad is False
    with nn.auto_forward(), nn.no_grad():
        assert flags() == (False, True)


def test_initial_values_from_functions_arrays_and_nothing():
    assert get_parameter_or_create("f", (2,), ones).d.tolist() == [1, 1]
    w = get_parameter_or_create("a", (2,), np.array([1.0, 2.0]))
    assert w.d.tolist() == [1, 2] and w.d.dtype == np.float64
    assert get_parameter_or_create("s", None, np.array([1.0, 2.0])).shape == (2,)
    assert get_parameter_or_create("z", (2,)).d.tolist() == [0, 0]


def test_whole_numbers_become_floats_where_a_gradient_is_needed():
    w = get_parameter_or_create("w", None, np.array([[1, 2]]))
    v = get_parameter_or_create("v", (2,), lambda shape: np.ones(shape, bool))
    n = get_parameter_or_create("n", None, np.array([3]), need_grad=False)
    assert (w.d.dtype, v.d.dtype, n.d.dtype) == (np.float32, np.float32, np.int64)
    assert w.d.tolist() == [[1, 2]]


def test_set_and_pop():
    v = nn.Variable((1,))
    set_parameter("n/z", v)
    assert names() == ["n/z"] and get_parameter("n/z") is v
    assert pop_parameter("n/z") is v
    assert names() == [] and pop_parameter("n/z") is None


def test_any_dictionary_is_a_scope():
    """As in NNabla: what was made in it is found in it again."""
    scope = {}
    with nn.parameter_scope("", scope):
        first = get_parameter_or_create("w", (2,), ones)
        get_parameter_or_create("deep/v", (2,), ones)
        assert get_parameter_or_create("w", (2,)) == first == get_parameter("w")
    assert names() == [] and list(scope) == ["w", "deep"]
    with nn.parameter_scope("deep", scope):
        assert names() == ["v"]
