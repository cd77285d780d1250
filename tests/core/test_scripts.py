# SPDX-License-Identifier: Apache-2.0
"""What scripts written for NNabla do and a tidy one would not: each kept one from running."""

from __future__ import annotations

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.core.arguments.warn_once import WARNED
from nnl.ext_utils import import_extension_module
from nnl.solver import Solver


@pytest.mark.parametrize("kept", [{}, {"clear_no_need_grad": True}])
def test_unlinked_copy_in_its_own_graph_is_the_value_without_its_gradient(kept: dict) -> None:
    x = nn.Variable((3,), need_grad=True)
    y = F.exp(x)
    z = F.mul2(y.get_unlinked_variable(need_grad=False) * 1, y * y)
    for value in (0.5, 1.0):
        x.d = value
        z.forward(**kept)
        x.grad.zero()
        z.backward(clear_buffer=bool(kept))
        np.testing.assert_allclose(z.d, np.exp(3 * value), rtol=1e-6)
        np.testing.assert_allclose(x.g, 2 * np.exp(3 * value), rtol=1e-6)  # not 3 times


def test_unlinked_copy_in_its_own_graph_needs_no_memory_of_its_own() -> None:
    x = nn.Variable((3,))
    x.d = 2
    y = F.exp(x)
    z = y.get_unlinked_variable() + y
    z.forward(clear_buffer=True)
    np.testing.assert_allclose(z.d, 2 * np.exp(2), rtol=1e-6)


def test_unlinked_copy_in_another_graph_keeps_the_value_of_the_last_forward() -> None:
    x = nn.Variable((3,))
    y = F.exp(x)
    z = y.get_unlinked_variable() * 1
    x.d = 1
    y.forward()
    x.d = 2
    z.forward()
    np.testing.assert_allclose(z.d, np.exp(1), rtol=1e-6)


def test_unlinked_copy_in_its_own_graph_can_be_compiled() -> None:
    @nn.compile
    def f(x: nn.Variable) -> nn.Variable:
        y = F.exp(x)
        return y.get_unlinked_variable() + y

    x = nn.Variable((3,))
    x.d = 1
    np.testing.assert_allclose(f(x).d, 2 * np.exp(1), rtol=1e-6)


class Parameter(nn.Variable):
    """As module classes of scripts derive it."""

    def __new__(cls, shape: tuple, need_grad: bool = True, initializer: object = None) -> Parameter:
        v = super().__new__(cls, shape, need_grad)
        v.d = 3
        return v

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__()
        self.note = args


def test_variable_can_be_derived_from_with_arguments_of_its_own() -> None:
    p = Parameter((2,), initializer=None)
    assert p.shape == (2,) and p.need_grad and p.note == ((2,),)
    assert p.d.tolist() == [3, 3]


@pytest.mark.parametrize("auto_forward", [False, True])
def test_functions_take_variables_of_derived_classes(auto_forward: bool) -> None:
    p = Parameter((2,))
    with nn.auto_forward(auto_forward):
        y = F.sum(p * p + 1)
    y.forward()
    p.grad.zero()
    y.backward()
    assert y.d == 20 and p.g.tolist() == [6, 6]
    assert type(y) is nn.Variable


def test_parametric_functions_use_registered_variables_of_derived_classes() -> None:
    nn.parameter.set_parameter("affine/W", Parameter((3, 2)))
    y = PF.affine(nn.Variable.from_numpy_array(np.ones((1, 3))), 2, with_bias=False)
    y.forward()
    assert y.d.tolist() == [[9, 9]]


def test_grad_takes_the_values_of_a_dictionary() -> None:
    x = nn.Variable.from_numpy_array([2.0], need_grad=True)
    params = {"x": x}
    (g,) = nn.grad([x * x], params.values())
    g.forward()
    assert g.d.tolist() == [4]


def test_grad_takes_running_statistics_as_constants(caplog: pytest.LogCaptureFixture) -> None:
    WARNED.clear()
    x = nn.Variable.from_numpy_array(np.eye(3))
    for batch_stat in (True, False):
        y = F.sum(PF.batch_normalization(x, batch_stat=batch_stat) ** 2)
        params = nn.get_parameters(grad_only=False)
        grads = dict(zip(params, nn.grad([y], params.values()), strict=True))
        F.sink(*grads.values()).forward()
        assert [grads[k].shape for k in params] == [params[k].shape for k in params]
        assert np.abs(grads["bn/gamma"].d).min() > 0
        assert not grads["bn/mean"].d.any() and not grads["bn/var"].d.any()
    texts = [r.getMessage() for r in caplog.records]
    name = "Variable 'mean' float32[1, 3]"
    assert f"grad: inputs[2], {name}, has need_grad=False: its gradient is zeros" in texts
    assert len(texts) == 2


def test_grad_names_what_is_no_variable() -> None:
    with pytest.raises(TypeError, match=r"grad: inputs\[0\] is float, wanted nnl\.Variable"):
        nn.grad(nn.Variable((), need_grad=True) * 2, 1.0)


class Clipping(Solver):
    """A solver around another one."""

    def __init__(self, solver: Solver) -> None:
        super().__init__()
        self.solver = solver

    def set_parameters(self, *args: object, **kwargs: object) -> None:
        self.solver.set_parameters(*args, **kwargs)

    def update(self, *args: object, **kwargs: object) -> None:
        self.solver.clip_grad_by_norm(1.0)
        self.solver.update(*args, **kwargs)


def test_solver_can_be_the_base_of_a_class_around_a_solver() -> None:
    w = nn.Variable.from_numpy_array(np.zeros(1, np.float32), need_grad=True)
    solver = Clipping(S.Sgd(0.5))
    solver.set_parameters({"w": w})
    w.g = 100
    solver.update()
    assert w.d.tolist() == [-0.5]
    assert isinstance(solver, Solver) and solver.get_parameters() == {}


def test_parameter_module_tells_no_grad_and_reads_files(tmp_path) -> None:
    assert nn.parameter.current_no_grad is False
    with nn.no_grad():
        assert nn.parameter.current_no_grad is True
    nn.clear_parameters()
    w = nn.parameter.get_parameter_or_create("w", (2,), np.full(2, 7.0))
    nn.parameter.save_parameters(str(tmp_path / "p.h5"))
    w.d = 0
    nn.parameter.load_parameters(str(tmp_path / "p.h5"))
    assert nn.get_parameters()["w"].d.tolist() == [7, 7]
    with nn.parameter.no_grad():
        assert nn.parameter.current_no_grad is True
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        nn.parameter.nothing  # noqa: B018


@pytest.mark.parametrize("name", ["cpu", "numpy"])
def test_extension_modules_answer_for_the_host(name: str) -> None:
    ext = import_extension_module(name)
    assert ext.get_devices() == ["0"] and ext.get_device_count() == 1
    assert "CpuCachedArray" in ext.array_classes()
    assert ext.synchronize(device_id="0") is ext.device_synchronize("0") is None
    assert ext.clear_memory_cache() is None


def test_old_names_still_lead_there() -> None:
    from nnl.contrib.context import extension_context
    from nnl.function_bases import relu
    from nnl.initializer import random
    from nnl.normalization_functions import layer_normalization
    from nnl.testing import assert_allclose

    assert extension_context("cpu", device_id="0").backend == nn.Context(["cpu:float"]).backend
    assert isinstance(random.prng, np.random.RandomState)
    assert relu is F.relu and layer_normalization is F.layer_normalization
    assert_allclose(1.0, 1.000001)
    with pytest.raises(AssertionError):
        assert_allclose(1.0, 1.001)


def test_extensions_can_be_imported_as_modules() -> None:
    import nnl_ext.cpu
    import nnl_ext.cuda
    import nnl_ext.cudnn

    assert nnl_ext.cpu.context().backend == nn.Context(["cpu:float"]).backend
    assert nnl_ext.cpu.get_device_count() == 1
    for name, module in (("cuda", nnl_ext.cuda), ("cudnn", nnl_ext.cudnn)):
        assert isinstance(module.get_device_count(), int)
        with pytest.raises(NotImplementedError, match=f"'{name}:quarter': type_config 'quarter'"):
            module.context(type_config="quarter")


def test_default_context_has_the_number_of_a_device() -> None:
    assert int(nn.get_current_context().device_id) == 0


def test_the_dtype_of_an_array_is_numpy_s() -> None:
    x = nn.Variable((2,))
    x.d = np.ones(2, np.float16)
    assert x.data.dtype == "float16" and x.data.dtype.itemsize == 2
    x.data.cast(np.float32)
    assert x.data.dtype == "float32" == x.data.dtype.name and x.grad.dtype == np.float32


def test_an_array_of_one_element_is_a_number() -> None:
    """`reward * -1`, where reward came from a Variable of shape (1, 1)."""
    x = nn.Variable.from_numpy_array([1.0, 2.0])
    one, three = np.array([[0.5]]), np.array([3])
    values = [F.mul_scalar(x, one), F.mul_scalar(x, val=one), x * one, x.data * one, x + three]
    values += [F.pow_scalar(x, three), F.leaky_relu(x, alpha=one), F.constant(one, (2,))]
    F.sink(*[v for v in values if isinstance(v, nn.Variable)]).forward()
    wanted = [[0.5, 1]] * 4 + [[4, 5], [1, 8], [1, 2], [0.5, 0.5]]
    assert [(v if isinstance(v, nn.NdArray) else v.data).data.tolist() for v in values] == wanted
    assert F.reshape(x, (np.array([2]), np.array([[1]]))).shape == (2, 1)
    assert F.softmax(x, axis=np.array([0])).shape == (2,)
    for call in (lambda: x * np.ones(2), lambda: x + np.array(["a"])):
        with pytest.raises(TypeError, match="numpy array: wrap the array"):
            call()
    with pytest.raises(TypeError, match=r"mul_scalar: val is \(1.0, 1.0\), wanted a float"):
        F.mul_scalar(x, np.ones(2))
