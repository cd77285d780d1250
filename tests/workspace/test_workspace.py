# SPDX-License-Identifier: Apache-2.0
"""Tensors by name, and functions that are made of them."""

from __future__ import annotations

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.workspace import Function, Operator, Tensor, Updater, Workspace, gradients, value_of


@pytest.fixture
def workspace():
    made = Workspace({})
    with made:
        yield made


def kept(workspace, name, value):
    value = np.asarray(value, np.float32)
    t = Tensor(workspace, name, value.shape)
    workspace.keep(t, value)
    return t


def test_only_what_is_wanted_runs(workspace):
    """f = x sin(a x + b): the product alone needs neither b nor the sine."""
    x, a, b = (Tensor(workspace, n, (3,)) for n in "xab")
    ax = x * a
    f = x * (ax + b).make("sin", F.sin)
    assert [op.type for op in Function([x, a], [ax]).operators] == ["mul"]
    every = Function([x, a, b], [f])
    assert [op.type for op in every.operators] == ["mul", "add", "sin", "mul"]
    v = np.array([[0.5, 1, 2], [1, 2, 3], [3, 2, 1]], np.float32)
    np.testing.assert_allclose(every(*v)[0], v[0] * np.sin(v[1] * v[0] + v[2]), rtol=1e-6)


def test_a_tensor_used_three_times(workspace):
    x = Tensor(workspace, "x", (2,))
    y = x * x + x
    (g,) = gradients([y], [x])
    np.testing.assert_array_equal(Function([x], [g])([1, 2])[0], [3, 5])  # 2 x + 1


def test_gradients_of_gradients_and_of_what_is_computed(workspace):
    x = Tensor(workspace, "x", (None,))
    cube = x**3
    y = cube * 2
    g, h = gradients([y], [x, cube])
    (gg,) = gradients([g], [x])
    f = Function([x], [g, h, gg])
    for v in ([1.0, 2.0], [3.0]):
        v = np.array(v, np.float32)
        for got, want in zip(f(v), (6 * v**2, 0 * v + 2, 12 * v), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)


def test_updates_see_the_values_before_any_of_them(workspace):
    a, b = kept(workspace, "a", [1, 2]), kept(workspace, "b", [3, 4])
    swap = Function([], [a, a + b], {a: b, b: a})
    assert [v.tolist() for v in swap()] == [[1, 2], [4, 6]]
    assert workspace.fetch("a").tolist() == [3, 4]
    assert workspace.fetch("b").tolist() == [1, 2]
    assert [v.tolist() for v in swap()] == [[3, 4], [4, 6]]


def test_values_by_name_between_runs(workspace):
    x, w = Tensor(workspace, "x", (None, 2)), kept(workspace, "w", [[1, 1], [1, 1]])
    y = w.make("affine", lambda w, x: F.affine(x, w), x)
    f = Function([], [y])
    workspace.feed("x", [[1, 2]])
    assert f()[0].tolist() == [[3, 3]]
    workspace.feed("w", [[1, 0], [0, 1]])
    workspace.feed("x", [[1, 2], [3, 4]])
    f()
    assert workspace.fetch(y.name).tolist() == [[1, 2], [3, 4]]
    assert workspace.scope["w"].d.tolist() == [[1, 0], [0, 1]]  # one store, two names for it


def test_what_is_computed_may_be_given(workspace):
    x = Tensor(workspace, "x", (2,))
    y = x * 2
    z = y + 1
    assert Function([y], [z])([5, 6])[0].tolist() == [6, 7]
    other = Tensor(workspace, "other", (2,))
    assert Function([other], [z], givens={x: other * 10})([1, 2])[0].tolist() == [21, 41]
    assert Function([], [z], givens={x: [1, 2]})()[0].tolist() == [3, 5]
    with pytest.raises(ValueError, match="Function: givens make a tensor depend on itself"):
        Function([], [z], givens={x: z * 2})


def test_shapes_are_found_before_anything_runs(workspace):
    x, w = Tensor(workspace, "x", (None, 3, None, 32)), kept(workspace, "w", np.ones((4, 3, 3, 3)))
    y = x.make("convolution", lambda x, w: F.convolution(x, w, pad=(1, 1), stride=(2, 2)), w)
    assert y.shape == (None, 4, None, 16)
    with pytest.raises(ValueError, match="affine: .*5.*3"):
        Tensor(workspace, "a", (4, 5)).make("affine", F.affine, Tensor(workspace, "b", (3, 2)))
    with pytest.raises(ValueError, match=r"Function: 'x' got shape \(1, 3, 2\), wanted \(None, 3"):
        Function([x], [y])(np.ones((1, 3, 2)))


def test_programs_for_values_that_shapes_depend_on(workspace):
    x, n = Tensor(workspace, "x", (None,)), Tensor(workspace, "n", (), np.int64)
    y = x.make("rows", lambda x, n: F.reshape(x, (int(value_of(n, "n")), -1)), n, knows=True)
    assert y.shape is None
    f = Function([x, n], [y])
    for rows in (2, 3, 2):
        assert f(np.arange(6), rows)[0].shape == (rows, 6 // rows)
    assert len(f.plans) == 2


def test_programs_for_what_is_computed_of_fed_and_kept_values(workspace):
    """A slice of a length that is computed: one program for each length, not for each start."""
    w, i = kept(workspace, "w", [2]), Tensor(workspace, "i", (), np.int64)
    data = kept(workspace, "data", np.arange(12))
    size = (i * 2 + 3) - i * 2

    def rows(data, i, size):
        assert not isinstance(i, np.ndarray)
        at = F.reshape(i, (1,)) + F.arange(0, int(value_of(size, "size")))
        return F.gather(data, at, axis=0)

    y = data.make("rows", rows, i.make("as", lambda i: i), size, knows=True)
    f = Function([i], [y])
    for start in (1, 5, 8):
        assert f(start)[0].tolist() == [start, start + 1, start + 2]
    assert len(f.plans) == 1
    times = data.make("times", lambda x, w: x * float(value_of(w, "w")[0]), w * 2, knows=True)
    f = Function([], [times], {w: w + 1})
    assert [f()[0][1] for _ in range(3)] == [4, 6, 8]
    drawn = data.make("draw", lambda x: F.rand(shape=()), knows=True)
    drawn.operator.constant = False
    y = drawn.make("of", lambda x: value_of(x, "its size"), knows=True)
    with pytest.raises(ValueError, match="of .* must know its size before it runs, and that is dr"):
        Function([], [y])()


def test_gradients_add_up_until_the_update(workspace):
    w, x = kept(workspace, "w", [1, 2]), Tensor(workspace, "x", (2,))
    (g,) = gradients([w * x], [w])
    updater = Updater(lambda: S.Sgd(0.5), [(w, g)], accumulate=True)
    f = Function([x], [], updater=updater, update=False)
    f([1, 1]), f([2, 3])
    assert workspace.scope["w"].g.tolist() == [3, 4]
    updater.apply()
    assert workspace.fetch("w").tolist() == [-0.5, 0]
    assert not workspace.scope["w"].g.any()


def test_multipliers_of_rate_and_decay(workspace):
    a, b, x = kept(workspace, "a", [1]), kept(workspace, "b", [1]), Tensor(workspace, "x", (1,))
    pairs = list(zip((a, b), gradients([a * x + b * x], [a, b]), strict=True))
    updater = Updater(lambda: S.Sgd(0.1), pairs, [1, 2], [1, 0], weight_decay=0.5)
    Function([x], [], updater=updater)([1])
    np.testing.assert_allclose(workspace.fetch("a"), [1 - 0.1 * (1 + 0.5)], rtol=1e-6)
    np.testing.assert_allclose(workspace.fetch("b"), [1 - 0.2], rtol=1e-6)


def test_an_operator_alone_and_its_gradient(workspace):
    """What dropout has drawn reaches its gradient by the operator's anchor."""
    x = Tensor(workspace, "x", (1000,))
    drop = x.make("dropout", F.dropout).operator
    workspace.feed("x", np.ones(1000))
    with pytest.raises(KeyError, match="Workspace.gradient: 'dropout' has not run"):
        workspace.gradient(drop)
    workspace.run(drop)
    (g,) = workspace.gradient(drop)
    np.testing.assert_array_equal(g, workspace.fetch("dropout"))
    assert 0 < (g == 0).sum() < 1000


@pytest.mark.parametrize("kind", ["float", "double", "half", "bfloat16"])
@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_an_operator_is_written_once_for_all_types_and_backends(workspace, backend, kind):
    """A Function has a program for each context that it is called in."""
    x = Tensor(workspace, "x", (None,))
    f = Function([x], [(x * x + 0.5).make("tanh", F.tanh)])
    value = np.linspace(-1, 1, 9, dtype=np.float32)
    bound = {"float": 1e-6, "double": 1e-6, "half": 2e-3, "bfloat16": 2e-2}[kind]
    for context in (nn.Context([f"{backend}:{kind}"]), nn.Context(["numpy:float"])):
        with nn.context_scope(context):
            np.testing.assert_allclose(f(value)[0], np.tanh(value**2 + 0.5), rtol=bound)
    assert len(f.plans) == (1 if (backend, kind) == ("numpy", "float") else 2)


def test_results_belong_to_the_caller(workspace):
    """Also what depends on no input, which the program has only once."""
    x = Tensor(workspace, "x", (2,))
    two = Operator(workspace, "two", lambda: np.float32([2, 2]), ()).outputs[0]
    three = Operator(workspace, "three", lambda: 3, ()).outputs[0]
    f = Function([x], [two, x * two, three])
    for a in f([1, 2]):
        a[...] = 9
    assert [a.tolist() for a in f([1, 2])] == [[2, 2], [2, 4], 3]
    assert workspace.fetch(two).tolist() == [2, 2]


def test_wrong_names_and_values(workspace):
    x = Tensor(workspace, "image", (2,))
    with pytest.raises(KeyError, match="no tensor is called 'imag'.*image"):
        workspace.feed("imag", 1)
    with pytest.raises(ValueError, match=r"Workspace.feed: 'image' got shape \(3,\), wanted"):
        workspace.feed("image", [1, 2, 3])
    with pytest.raises(KeyError, match="'image' has no value"):
        workspace.fetch("image")
    with pytest.raises(ValueError, match="Function: 'image' is needed and has no value: feed it"):
        Function([], [x * 2])()
    with pytest.raises(ValueError, match="updates has 'image', which the workspace does not keep"):
        Function([], [], {x: x})
    with pytest.raises(ValueError, match="Function: inputs has 'image' twice"):
        Function([x, x], [x * 2])
    with pytest.raises(ValueError, match="Function: 'image': could not convert string to float"):
        Function([x], [x * 2])("a")
    w = Tensor(workspace, "w", (2,))
    workspace.keep(w, [1, 2])
    with pytest.raises(ValueError, match=r"update of 'w' has shape \(1, 2\), wanted \(2,\)"):
        Function([], [], {w: w.make("reshape", F.reshape, (1, 2))})()
    assert workspace.fetch("w").tolist() == [1, 2]
    assert Tensor(workspace, "image").name == "image_1"
    workspace.reset()
    assert "image" not in workspace


def test_programs_can_be_read(workspace):
    x = Tensor(workspace, "x", (2,))
    f = Function([x], [x * 2 + 1])
    with pytest.raises(ValueError, match="no program before it is called"):
        f.text()
    f([1, 2])
    assert "mul_scalar" in f.text(passes=False) and "fused_elementwise" not in f.text(passes=False)
    assert "fused_elementwise" in f.text()
    assert workspace.functions["function"] is f
    assert nn.get_parameters() == {}


def test_assignments_among_operators(workspace):
    """Reads come before writes unless told to come after; outputs are the values before."""
    w, x = kept(workspace, "w", [1, 2]), Tensor(workspace, "x", (2,))
    assign = w.make("assign", lambda w, x: w + x, x, writes=[w]).operator
    late = w.make("double", lambda w: w * 2, after=assign.outputs)
    early = w * 2
    (g,) = gradients([(w * w).make("after", F.identity, after=assign.outputs)], [w])
    f = Function([x], [late, early, w, g])
    assert [op.type for op in f.operators][-3:] == ["double", "after", "gradients"]
    assert [v.tolist() for v in f([3, 4])] == [[8, 12], [2, 4], [1, 2], [2, 4]]
    assert workspace.fetch("w").tolist() == [4, 6]
    assert [v.tolist() for v in Function([], [early])()] == [[8, 12]]
