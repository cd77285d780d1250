# SPDX-License-Identifier: Apache-2.0
"""Module and Sequential: whose parameters are whose, and what files and flags do."""

import io

import numpy as np
import pytest

import nnl as nn
from nnl import functions as F
from nnl import parametric_functions as PF
from nnl.core.parameters.parameter import (
    FILES,
    get_current_parameter_scope,
    get_parameter_or_create,
)
from nnl.parametric_functions.module import Module, ParamMemo, Sequential


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setitem(FILES, "save_parameters", nn.save_parameters)
    monkeypatch.setitem(FILES, "load_parameters", nn.load_parameters)
    nn.seed(313)
    yield
    assert get_current_parameter_scope() is nn.parameter.root_scope


class Dense(Module):
    def __init__(self, n):
        self.n = n

    def call(self, x):
        return PF.affine(x, self.n)


class Net(Module):
    def __init__(self):
        self.a = Dense(3)
        self.b = Dense(2)

    def call(self, x):
        return self.b(PF.batch_normalization(self.a(x), batch_stat=self.training))


class Deep(Module):
    def __init__(self):
        self.net = Net()

    def call(self, x):
        return PF.affine(self.net(x), 5, name="out")


NET = ["@a/affine/W", "@a/affine/b", "@b/affine/W", "@b/affine/b"]
NORMALIZATION = [f"bn/{name}" for name in ("beta", "gamma", "mean", "var")]


def x():
    return nn.Variable.from_numpy_array(np.ones((2, 4), np.float32))


def called(module):
    module(x())
    return module


# ---- parameters ----


def test_parameters_are_made_by_the_first_call_and_listed_submodules_first():
    net = Net()
    assert not net.get_parameters()
    called(net)
    assert list(net.get_parameters()) == NET + NORMALIZATION
    assert list(net.get_parameters(grad_only=True)) == NET + NORMALIZATION[:2]
    assert list(net.get_parameters(recursive=False)) == NORMALIZATION
    assert list(net.a.get_parameters()) == ["affine/W", "affine/b"]


def test_names_say_the_way_through_submodules():
    names = [f"@net/{name}" for name in NET + NORMALIZATION]
    assert list(called(Deep()).get_parameters()) == [*names, "out/affine/W", "out/affine/b"]


def test_modules_in_lists_tuples_and_dictionaries_are_parts(tmp_path):
    class Blocks(Module):
        def __init__(self):
            self.many = []
            self.last = Dense(2)
            self.many += [Dense(3), self.last]  # the second one is a submodule already
            self.more, self.named = ("text", {7: [Dense(4)]}), {"head": Dense(5), 7: self}
            self.endless = [self.last]
            self.endless.append(self.endless)

        def call(self, x):
            for part in (*self.many, self.more[1][7][0], self.named["head"]):
                x = part(x)
            return x

    net = Blocks()
    assert not net.get_parameters()
    with nn.graph_def.graph() as g:
        called(net)
    parts = ["@last", "@many.0", "@more.1.7.0", "@named.head"]
    names = [f"{part}/affine/{w}" for part in parts for w in "Wb"]
    assert list(net.get_parameters()) == names
    assert sorted(g.get_parameters()) == sorted(names)
    assert list(net.submodules) == ["last"] and net.many[0].parent is net
    assert net.many[0].get_path_name() == "@blocks/@many.0"
    net.training = False
    assert not net.many[0].training and not net.named["head"].training
    net.save_parameters(tmp_path / "p.h5")
    other = Blocks()
    other.load_parameters(tmp_path / "p.h5")
    np.testing.assert_array_equal(called(other)(x()).shape, (2, 5))
    for name, p in other.get_parameters().items():
        np.testing.assert_array_equal(p.d, net.get_parameters()[name].d, err_msg=name)


def test_two_objects_share_nothing_and_the_registry_sees_neither():
    with nn.parameter_scope("outside"):
        one, other = called(Net()), called(Net())
    assert one.get_parameters()[NET[0]] is not other.get_parameters()[NET[0]]
    assert not nn.get_parameters(grad_only=False)


def test_calling_twice_uses_the_same_parameters():
    net = called(Net())
    first = net.get_parameters()
    called(net)
    assert all(p is first[k] for k, p in net.get_parameters().items())


def test_every_method_runs_in_the_scope_of_its_object():
    class Layer(Module):
        def __init__(self):
            self.w = get_parameter_or_create("w", (4, 3))

        def helper(self, x):
            return PF.affine(x, 2)

        def call(self, x):
            return self.helper(x), F.affine(x, self.w)

    layer = Layer()
    assert list(layer.get_parameters()) == ["w"]
    layer.helper(x())
    assert list(layer.get_parameters()) == ["w", "affine/W", "affine/b"]


def test_a_scope_opened_in_call_does_not_reach_into_submodules():
    class Layer(Module):
        def __init__(self):
            self.a = Dense(3)

        def call(self, x):
            with nn.parameter_scope("block"):
                return PF.affine(self.a(x), 2)

    names = ["@a/affine/W", "@a/affine/b", "block/affine/W", "block/affine/b"]
    assert list(called(Layer()).get_parameters()) == names


def test_the_scope_is_left_when_call_raises():
    class Bad(Module):
        def call(self, x):
            raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        Bad()(x())  # the fixture looks at the scope


def test_a_shared_submodule_is_listed_once():
    class Shared(Module):
        def __init__(self):
            self.p = Dense(4)
            self.q = self.p

        def call(self, x):
            return self.q(self.p(x))

    shared = called(Shared())
    assert list(shared.get_parameters()) == ["@p/affine/W", "@p/affine/b"]
    assert list(shared.submodules) == ["p", "q"]


def test_a_memo_leaves_out_what_it_has_seen():
    net, memo = called(Net()), ParamMemo()
    assert len(net.get_parameters(memo=memo)) == 8
    assert not net.get_parameters(memo=memo)


def test_zero_grad_reaches_all_gradients():
    net = called(Net())
    for p in net.get_parameters().values():
        p.g = 3
    net.zero_grad()
    assert all((p.g == 0).all() for p in net.get_parameters().values())


def test_a_module_trains():
    net = Net()
    a = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    loss = F.mean((net(nn.Variable.from_numpy_array(a)) - 1) ** 2)
    solver = nn.solvers.Sgd(0.1)
    solver.set_parameters(net.get_parameters(grad_only=True))
    loss.forward()
    before = float(loss.d)
    for _ in range(5):
        solver.zero_grad()
        loss.forward()
        loss.backward()
        solver.update()
    loss.forward()
    assert loss.d < before


# ---- setting ----


def test_set_parameter_replaces_the_variable():
    net, v = called(Net()), nn.Variable((4, 3), need_grad=True)
    net.set_parameter("@a/affine/W", v)
    assert net.get_parameters()["@a/affine/W"] is v


def test_parameters_of_missing_submodules_are_ignored_unless_asked_for():
    net, v = called(Net()), nn.Variable((3,), need_grad=True)
    net.set_parameter("@zz/affine/b", v)
    assert list(net.get_parameters()) == NET + NORMALIZATION
    before = net.get_parameters()["@a/affine/b"]
    with pytest.raises(ValueError, match=r"^Net.set_parameter: '@zz/q': there is no submodule 'zz"):
        net.set_parameters({"@a/affine/b": v, "@zz/q": v}, raise_if_missing=True)
    assert net.get_parameters()["@a/affine/b"] is before


def test_update_parameter_hands_stray_parameters_down():
    net = Net()
    with nn.parameter_scope("", net.parameter_scope):
        get_parameter_or_create("@a/affine/W", (4, 3))
    net.update_parameter()
    assert list(net.a.get_parameters()) == ["affine/W"]
    assert list(net.get_parameters()) == ["@a/affine/W"]


@pytest.mark.parametrize(
    "key,param,error,text",
    [
        ("@a", nn.Variable((2,)), ValueError, "key is '@a', wanted '@a/' and a parameter's name"),
        ("", nn.Variable((2,)), TypeError, "key is '', wanted a name"),
        ("w", 3.0, TypeError, "'w' is float, wanted nnl.Variable"),
    ],
)
def test_wrong_keys_and_values_are_named(key, param, error, text):
    with pytest.raises(error, match=f"^Net.set_parameter: {text}"):
        Net().set_parameter(key, param)


# ---- files ----


@pytest.mark.parametrize("extension", [".h5", ".protobuf"])
def test_a_file_gives_parameters_back_also_before_the_first_call(tmp_path, extension):
    net, fresh, path = called(Net()), Net(), str(tmp_path / f"net{extension}")
    net.save_parameters(path)
    fresh.load_parameters(path)
    assert list(fresh.get_parameters()) == list(net.get_parameters())
    for k, p in net.get_parameters().items():
        np.testing.assert_array_equal(fresh.get_parameters()[k].d, p.d)
    assert not nn.get_parameters(grad_only=False)


def test_a_file_object_takes_the_extension():
    net, fresh, file = called(Net()), Net(), io.BytesIO()
    net.save_parameters(file, ".protobuf")
    file.seek(0)
    fresh.load_parameters(file, ".protobuf")
    assert list(fresh.get_parameters()) == NET + NORMALIZATION


def test_a_file_of_another_module_is_refused_unless_told_not_to(tmp_path):
    path = str(tmp_path / "net.h5")
    called(Net()).save_parameters(path)
    other = Dense(2)
    with pytest.raises(ValueError, match="there is no submodule 'a'"):
        other.load_parameters(path)
    assert not other.get_parameters()
    other.load_parameters(path, raise_if_missing=False)
    assert list(other.get_parameters()) == NORMALIZATION


@pytest.mark.parametrize("name", ["save", "load"])
def test_without_file_functions_the_error_says_what_to_use(monkeypatch, name):
    monkeypatch.delitem(FILES, f"{name}_parameters")
    with pytest.raises(NotImplementedError, match=f"^Net.{name}_parameters: use nnl.Module"):
        getattr(Net(), f"{name}_parameters")("net.h5")


# ---- the tree ----


def test_names_and_paths_follow_the_attributes():
    deep = Deep()
    assert (deep.name, deep.net.name, deep.net.a.name) == ("deep", "net", "a")
    assert deep.net.a.get_path_name() == "@deep/@net/@a"
    assert deep.get_scope_name() == "@net/@a"
    assert deep.net.parent is deep and deep.is_root() and not deep.net.is_root()
    assert (len(deep), len(deep.net), len(deep.net.a)) == (1, 2, 0)
    assert deep.net.a and repr(deep.net) == "Net"


def test_an_attribute_that_is_replaced_is_no_submodule_any_more():
    net = Net()
    net.b = None
    assert list(net.submodules) == ["a"]
    del net.a
    assert not net.submodules


def test_training_is_true_at_first_and_set_in_all_submodules():
    deep = Deep()
    assert deep.training and deep.net.a.training
    deep.training = False
    assert not deep.net.training and not deep.net.a.training
    deep.net.training = True
    assert deep.net.a.training and not deep.training


def test_saving_no_parameters_says_where_those_of_a_module_are(tmp_path, caplog):
    net = Net()
    net(nn.Variable((2, 3)))
    nn.save_parameters(tmp_path / "none.h5")
    assert caplog.text.count("for there are none here; a Module saves its own by its save_") == 1
    assert "(documentation: guides/own_layer#layers-as-objects)" in caplog.text
    net.save_parameters(tmp_path / "net.h5")
    assert caplog.text.count("gets no parameters") == 1


def test_call_must_be_defined():
    class Empty(Module):
        pass

    with pytest.raises(NotImplementedError, match="^Empty.call: define it in the class"):
        Empty()(x())


# ---- Sequential ----


def test_modules_of_a_sequence_are_named_by_class_and_position():
    net = called(Sequential(Dense(3), Sequential(Dense(2), ("head", Dense(5)))))
    assert list(net.get_parameters())[::2] == [
        "@dense_0/affine/W",
        "@sequential_1/@dense_0/affine/W",
        "@sequential_1/@head/affine/W",
    ]
    assert net(x()).shape == (2, 5)


def test_a_module_may_stand_twice():
    layer = Dense(4)
    net = called(Sequential(layer, layer))
    assert list(net.submodules) == ["dense_0", "dense_1"]
    assert list(net.get_parameters()) == ["@dense_0/affine/W", "@dense_0/affine/b"]


def test_a_tuple_becomes_the_arguments_of_the_next():
    class Both(Module):
        def call(self, x, y=None):
            return (x, x) if y is None else x + y

    with nn.auto_forward():
        np.testing.assert_array_equal(Sequential(Both(), Both())(x()).d, 2)


@pytest.mark.parametrize(
    "args,error,text",
    [
        ((F.relu,), TypeError, "argument 0 is <op relu.*wanted nnl.Module or a pair"),
        ((("a", 3),), TypeError, r"argument 0 is \('a', 3\), wanted nnl.Module or a pair"),
        ((("a", Dense(2)), ("a", Dense(3))), ValueError, "argument 1 has the name 'a' of another"),
    ],
)
def test_a_sequence_takes_only_modules_of_different_names(args, error, text):
    with pytest.raises(error, match=f"^Sequential: {text}"):
        Sequential(*args)


def test_a_sequence_of_nothing_cannot_be_called():
    with pytest.raises(ValueError, match="^Sequential: there is no module to call"):
        Sequential()(x())
