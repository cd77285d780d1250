# SPDX-License-Identifier: Apache-2.0
"""What errors and warnings say of mistakes that beginners make: what to write instead."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.core.arrays.spec import ShapeError
from nnl.utils.data_iterator import SimpleDataSource, data_iterator_simple


def variable(*shape):
    return nn.Variable(shape)


X = variable(2, 3)
ARRAY = nn.NdArray(2, 3)
WRAP = "wrap the array with nnl.NdArray.from_numpy_array or nnl.Variable.from_numpy_array"


def raises(call, error, text):
    with pytest.raises(error) as e:
        call()
    assert type(e.value) is error and str(e.value) == text


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: X > 0, "Variable > int: F.greater_scalar(x, 0) compares the values"),
        (lambda: X <= 0.5, "Variable <= float: F.less_equal_scalar(x, 0.5) compares the values"),
        (lambda: 1 > X, "Variable < int: F.less_scalar(x, 1) compares the values"),
        (lambda: X >= X, "Variable >= Variable: F.greater_equal(x, y) compares the values"),
        (lambda: ARRAY < 1, "NdArray < int: F.less_scalar(x, 1) compares the values"),
        (lambda: X > np.ones(3), f"Variable > numpy array: {WRAP}"),
        (lambda: np.ones(3) > X, f"Variable < numpy array: {WRAP}"),
        (lambda: X > "a", "'>' not supported between instances of 'Variable' and 'str'"),
        (lambda: float(X), "float(Variable): write float(x.d)"),
        (lambda: int(ARRAY), "int(NdArray): write int(x.data)"),
        (
            lambda: np.sum(X),
            "numpy.sum of a Variable: write x.d for its values, or a function of nnl.functions",
        ),
        (
            lambda: np.concatenate([np.ones(3), ARRAY]),
            "numpy.concatenate of a NdArray: write x.data for its values, or a function of "
            "nnl.functions",
        ),
    ],
)
def test_comparisons_numbers_and_functions_of_numpy(call, text):
    raises(call, TypeError, text)


def test_what_numpy_may_ask_of_a_variable():
    assert np.shape(X) == (2, 3) and np.ndim(X) == 2 and np.size(X) == 6
    one, two = nn.Variable.from_numpy_array(1.0), nn.Variable.from_numpy_array(2.0)
    with nn.auto_forward():
        assert np.sum([one, two]).d == 3  # as with NNabla: an array of objects
    assert np.array(X).dtype == object and np.array([X, X]).shape == (2,)


def test_equal_tells_whether_two_handles_are_one_variable():
    y = nn.Variable((2, 3))
    assert (X == y) is False and X == X.unlinked() and y != X


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (None, "None"),
        ("abc", "'abc'"),
        (np.array(["a"]), "array of <U1"),
        ([[1], [1, 2]], "[[1], [1, 2]]"),
    ],
)
def test_what_is_no_array_of_numbers(value, got):
    text = f"from_numpy_array: got {got}, wanted an array of numbers"
    raises(lambda: nn.Variable.from_numpy_array(value), TypeError, text)
    raises(lambda: nn.NdArray.from_numpy_array(value), TypeError, text)


def test_a_variable_where_an_array_is_wanted():
    x = variable(8, 1)
    x.name = "t"
    text = "wanted an array of numbers: write x.d for its values"
    raises(
        lambda: nn.Variable.from_numpy_array(x),
        TypeError,
        f"from_numpy_array: got Variable, {text}",
    )
    text = "data: got Variable, wanted a number or an array of numbers: write x.d for its values"
    raises(lambda: setattr(x, "d", X), TypeError, f"Variable 't': {text}")


def test_a_column_that_is_given_as_a_row():
    t = variable(8, 1)
    t.name = "t"
    text = "Variable 't': data: cannot assign an array of shape ({},) to float32[8, 1]"
    hint = ": write a[:, None] for the array a"
    raises(lambda: setattr(t, "d", np.ones(8)), ShapeError, text.format(8) + hint)
    raises(lambda: setattr(t, "d", np.ones(7)), ShapeError, text.format(7))
    t.d = np.ones(8)[:, None]
    assert t.d.shape == (8, 1)


def test_labels_of_another_shape():
    x, target = variable(8, 4), "softmax_cross_entropy: target {} must have the shape (8, 1) for x "
    hint = ": of rows t that are one-hot, it is t.argmax(1, keepdims=True)"
    with pytest.raises(ShapeError) as e:
        F.softmax_cross_entropy(x, variable(8, 4))
    assert str(e.value).endswith(f"must have the shape (8, 1) for x {x.spec}{hint}")
    with pytest.raises(ShapeError) as e:
        F.softmax_cross_entropy(x, variable(8))
    assert str(e.value).endswith(f"for x {x.spec}: write F.reshape(target, (8, 1))"), target
    with pytest.raises(ShapeError) as e:
        F.one_hot(variable(4), (3,))
    assert str(e.value).endswith("each size of shape (3,): write F.reshape(x, (4, 1))")


def test_a_list_where_several_arguments_are_wanted():
    text = "x is list, wanted nnl.Variable or nnl.NdArray: write {0}(*x)"
    for function in (F.concatenate, F.stack):
        with pytest.raises(TypeError) as e:
            function([X, X])
        assert str(e.value).endswith(text.format(function.__name__))
    assert F.concatenate(*[X, X], axis=0).shape == (4, 3)


def test_a_layer_that_exists_with_another_shape_is_named():
    PF.affine(variable(2, 4), 5)
    text = (
        "{}: parameter '{}' exists with the shape {}, wanted {}: give each call a name of its "
        'own, as name="second", or forget all parameters by clear_parameters() '
        "(documentation: guides/sharp_bits#a-name-is-a-weight)"
    )
    first = text.format("affine", "affine/W", (4, 5), (5, 5))
    raises(lambda: PF.affine(variable(2, 5), 5), ShapeError, first)

    @PF.parametric_function_api("glu")
    def gated(x):
        v = PF.get_parameter_or_create("V", (x.shape[1], 3))
        return PF.affine(x @ v, x.shape[1], name="in")

    gated(variable(2, 4))
    own = text.format("gated", "glu/V", (4, 3), (6, 3))
    raises(lambda: gated(variable(2, 6)), ShapeError, own)
    PF.pop_parameter("glu/V")
    inner = text.format("affine", "glu/in/affine/W", (3, 4), (3, 6))
    raises(lambda: gated(variable(2, 6)), ShapeError, inner)
    raises(
        lambda: PF.get_parameter_or_create("affine/W", (9,)),
        ShapeError,
        "get_parameter_or_create: parameter 'affine/W' exists with the shape (4, 5), wanted (9,): "
        "give each call a name of its own, or forget all parameters by clear_parameters() "
        "(documentation: guides/sharp_bits#a-name-is-a-weight)",
    )
    PF.affine(variable(2, 5), 5, name="second")


@pytest.mark.parametrize(
    ("shape", "wanted"), [(3, "3, wanted (3,)"), (2.5, "2.5, wanted a sequence of ints")]
)
def test_a_shape_that_is_a_number(shape, wanted):
    text = f"get_parameter_or_create: shape of 'v' is {wanted}"
    raises(lambda: PF.get_parameter_or_create("v", shape), TypeError, text)
    PF.get_parameter_or_create("v", (3,))
    raises(lambda: PF.get_parameter_or_create("v", shape), TypeError, text)


def test_the_table_of_a_layer_is_for_help_alone():
    assert "For help() alone" in PF.parametric_function_api.__doc__

    @PF.parametric_function_api("fixed", [("W", "Weight", "(1, n)", False)])
    def layer(x):
        return x * PF.get_parameter_or_create("W", (1, 3))

    assert layer.__doc__.endswith("    W: Weight, (1, n), without gradient.")
    layer(X)
    assert nn.get_parameters()["fixed/W"].need_grad


def test_the_sizes_of_input_and_output():
    text = (
        "affine: base_axis 4 is outside [-2, 2) for the shape (2, 3): affine takes the size of the "
        "output alone, that of x is known"
    )
    raises(lambda: PF.affine(X, 3, 4), ShapeError, text)


def test_parameters_where_a_solver_takes_numbers():
    PF.affine(X, 1)
    text = "Adam: alpha is OrderedDict, wanted a number: set_parameters takes the parameters"
    raises(lambda: S.Adam(nn.get_parameters()), TypeError, text)


def test_a_data_set_without_samples():
    text = "num_examples=0: there are no samples, wanted at least 1"
    load = lambda i: (i,)  # noqa: E731
    raises(lambda: SimpleDataSource(load, 0), ValueError, f"SimpleDataSource: {text}")
    raises(lambda: data_iterator_simple(load, 0, 2), ValueError, f"data_iterator_simple: {text}")
    with pytest.raises(TypeError, match="^data_iterator_simple: load_func is a int, a function wa"):
        data_iterator_simple(3, 1, 2)


def test_files_that_are_not_there_or_of_another_kind(tmp_path):
    missing = str(tmp_path / "no")
    for extension in (".h5", ".protobuf"):
        with pytest.raises(FileNotFoundError) as e:
            S.Adam().load_states(missing + extension)
        assert str(e.value) == f"[Errno 2] No such file or directory: '{missing}{extension}'"
    path = tmp_path / "p.h5"
    PF.affine(X, 1)
    nn.save_parameters(path)
    with pytest.raises(ValueError) as e:
        nn.load_program(path)
    assert str(e.value).startswith(
        f"{path}: it is no program: they are in .nnlp files, which save_program and nnl convert "
        "write (the header claims "
    )


def test_inputs_of_a_program_that_are_no_dict(tmp_path):
    path = tmp_path / "p.nnlp"
    text = "save_program: {} is {}, wanted a dict{}"
    as_dict = ', as {"x": x}'
    raises(
        lambda: nn.save_program(path, X * 2, X),
        TypeError,
        text.format("inputs", "Variable", as_dict),
    )
    raises(lambda: nn.save_program(path, programs=3), TypeError, text.format("programs", 3, ""))


def messages(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "nnl"]


def test_zeros_that_a_program_keeps_are_told(tmp_path, caplog):
    a, b = variable(2, 3), variable(2, 3)
    b.name = "h0"
    with caplog.at_level("INFO", "nnl"):
        nn.save_program(tmp_path / "p.nnlp", a + b, {"a": a})
        told = messages(caplog)
        b.d = 1
        nn.save_program(tmp_path / "p.nnlp", a + b, {"a": a})
        nn.save_program(tmp_path / "p.nnlp", a + b, {"a": a, "b": b})
    assert (
        told
        == messages(caplog)
        == [
            "save_program: 'h0', (2, 3), is none of the inputs: it is saved as the zeros that it "
            "holds"
        ]
    )


def test_a_file_of_another_network_is_told(tmp_path, caplog):
    path = tmp_path / "p.h5"
    PF.affine(X, 1, name="one")
    nn.save_parameters(path)
    nn.clear_parameters()
    with caplog.at_level("INFO", "nnl"):
        nn.load_parameters(path)  # before the network is built: nothing to tell
        nn.clear_parameters()
        PF.affine(X, 1, name="other")
        nn.load_parameters(path)
        nn.load_parameters(path)
    assert messages(caplog) == [
        f"load_parameters: {path}: none of its 2 parameters (one/affine/W ...) is among the 2 that "
        "there are (other/affine/W ...): they are added"
    ]


def test_a_gradient_that_nothing_computes_is_told_once(caplog):
    x, w = variable(2), nn.Variable((2,), need_grad=True)
    x.name = "x"
    y = x * w
    y.forward()
    y.backward()
    with caplog.at_level("WARNING", "nnl"):
        assert (x.g == 0).all() and (x.g == 0).all() and (w.g == 0).all()
    assert messages(caplog) == [
        "Variable 'x': .g was read, and need_grad is False: backward() gives it no gradient"
    ]


def test_wrong_flags_and_sizes_name_the_function():
    x, w, odd = variable(4, 2, 6), variable(6, 6), np.zeros((0, 3))
    shown = "array([], shape=(0, 3), dtype=float64), wanted a bool"
    raises(lambda: nn.seed(1, True, odd), TypeError, f"seed: set_parameter_seed is {shown}")
    adam = S.Adam()
    for name in ("reset", "retain_state"):
        text = f"Adam.set_parameters: {name} is {shown}"
        raises(lambda n=name: adam.set_parameters({"w": X}, **{n: odd}), TypeError, text)
    raises(
        lambda: F.spectral_norm(variable(3, 2), variable(3), output_u={1}),
        TypeError,
        "spectral_norm: output_u is {1}, wanted a bool",
    )
    for weight, text in (
        (variable(6), "k_weight has the shape (6,), wanted 2 axes"),
        (variable(6, 0), "q_weight has 0 columns, wanted a multiple of num_heads 3"),
    ):
        weights = [weight, w] if text[0] == "q" else [w, weight]
        raises(
            lambda given=weights: F.multi_head_attention(x, x, x, 3, *given, w, w),
            ShapeError,
            f"multi_head_attention: {text}",
        )
    raises(
        lambda: PF.rnn(variable(5, 2, 3), variable(2, 1, 2, 4), num_layers=10**18),
        ShapeError,
        f"rnn: h has the shape (2, 1, 2, 4), wanted ({10**18}, D, B, H)",
    )
    text = f"tile: reps is ({10**18},), wanted numbers in [1, 2^31)"
    raises(lambda: F.tile(variable(0), 10**18), ValueError, text)
