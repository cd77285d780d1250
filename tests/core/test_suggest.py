# SPDX-License-Identifier: Apache-2.0
"""Names that do not exist: what was meant."""

import importlib
import re

import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.core.arguments.suggest import ELSEWHERE, MODULE, SOLVER, VARIABLE
from nnl.utils import data_iterator, learning_rate_scheduler

X = nn.Variable((4, 3, 8, 8))


@pytest.mark.parametrize(
    ("module", "name", "meant"),
    [
        ("nnl.parametric_functions", "linear", "affine"),
        ("nnl.parametric_functions", "Conv2d", "convolution"),
        ("nnl.parametric_functions", "afine", "affine"),
        ("nnl.solvers", "SGD", "Sgd"),
        ("nnl.solvers", "RMSProp", "RMSprop"),
        ("nnl.functions", "conv2d", "convolution"),
        ("nnl.functions", "cross_entropy", "softmax_cross_entropy"),
        ("nnl.functions", "sofmax", "softmax"),
        ("nnl", "Tensor", "Variable"),
        ("nnl", "Varable", "Variable"),
        ("nnl", "save", "save_parameters"),
        ("nnl", "load", "load_parameters"),
        ("nnl", "optim", "solvers"),
        # names that another module has
        ("nnl", "Linear", "nnl.parametric_functions.affine"),
        ("nnl", "Conv2d", "nnl.parametric_functions.convolution"),
        ("nnl", "ReLU", "nnl.functions.relu"),
        ("nnl", "CrossEntropyLoss", "nnl.functions.softmax_cross_entropy"),
        ("nnl", "Adam", "nnl.solvers.Adam"),
        ("nnl", "DataLoader", "nnl.utils.data_iterator.data_iterator_simple"),
        ("nnl.parametric_functions", "relu", "nnl.functions.relu"),
        ("nnl.solvers", "StepLR", "nnl.utils.learning_rate_scheduler.StepScheduler"),
    ],
)
def test_unknown_names_of_modules(module, name, meant):
    text = rf"^module '{module}' has no attribute '{name}': did you mean {meant}\?$"
    with pytest.raises(AttributeError, match=text):
        getattr(importlib.import_module(module), name)


def test_nothing_is_suggested_for_what_looks_like_nothing():
    with pytest.raises(AttributeError, match="^module 'nnl.functions' has no attribute 'xyzzy'$"):
        F.xyzzy  # noqa: B018
    with pytest.raises(AttributeError, match="^module 'nnl' has no attribute 'np'$"):
        nn.np  # noqa: B018 (a module has one)
    assert not hasattr(F, "__wrapped__") and not hasattr(nn, "_x")


class Net(nn.Module):
    def call(self, x):
        return PF.affine(x, 2)


@pytest.mark.parametrize(
    ("thing", "name", "text"),
    [
        (X, "item", "'Variable' object has no attribute 'item': write float(x.d)"),
        (X, "numpy", "'Variable' object has no attribute 'numpy': write x.d"),
        (X, "T", "'Variable' object has no attribute 'T': write F.transpose(x, axes)"),
        (nn.Variable, "view", "type object 'Variable' has no attribute 'view': write F.reshape"),
        (S.Adam(), "step", "'Adam' object has no attribute 'step': write solver.update()"),
        (Net(), "parameters", "'Net' object has no attribute 'parameters': write net.get_param"),
        (Net(), "train", "'Net' object has no attribute 'train': write net.training = True"),
    ],
)
def test_names_that_objects_of_other_frameworks_have(thing, name, text):
    with pytest.raises(AttributeError) as e:
        getattr(thing, name)
    assert str(e.value).startswith(text)
    assert not hasattr(thing, name) and getattr(thing, name, None) is None
    assert thing is nn.Variable or name not in dir(thing)
    assert e.value.name is None  # else Python adds what it guesses


def test_names_of_other_frameworks_are_free():
    class Own(nn.Module):
        def __init__(self):
            self.parameters = 3

        def forward(self, x):
            return x

    own = Own()
    assert own.parameters == 3 and own.forward(4) == 4
    assert {"parameters", "forward"} <= set(dir(own)) and "train" not in dir(own)
    text = "^Own.call: define it in the class, which has forward: rename that$"
    with pytest.raises(NotImplementedError, match=text):
        own(X)


@pytest.mark.parametrize(
    ("table", "known"),
    [
        (VARIABLE, {"F": F, "x": X, "nn": nn}),
        (SOLVER, {"solver": S.Adam()}),
        (MODULE, {"net": Net(), "PF": PF, "nn": nn}),
    ],
)
def test_what_is_to_be_written_exists(table, known):
    for text in table:
        for thing, name in re.findall(r"\b(F|PF|nn|x|solver|net)\.(?!name\b)(\w+)", text):
            assert hasattr(known[thing], name), text


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: S.Adam(lr=1), "Adam has no argument 'lr': did you mean alpha?"),
        (lambda: S.Momentum(learning_rate=1), "did you mean lr?"),
        (lambda: S.Adam(0.1, beta=0.5), "did you mean beta"),
        (lambda: F.softmax(X, dim=1), "softmax() has no argument 'dim': did you mean axis?"),
        (lambda: F.max_pooling(X, (2, 2), padding=1), "did you mean pad?"),
        (lambda: PF.convolution(X, 3, kernel_size=3), "did you mean kernel?"),
        (lambda: PF.affine(X, 3, bias=False), "did you mean with_bias?"),
    ],
)
def test_unknown_arguments(call, text):
    with pytest.raises(TypeError) as e:
        call()
    assert text in str(e.value).replace("Adam()", "Adam")


def test_solvers_of_scripts_may_take_other_arguments():
    class Mine(S.Adam):
        def __init__(self, **kw):
            super().__init__(alpha=kw["lr"])

    assert Mine(lr=0.5).learning_rate() == 0.5


def test_every_name_of_other_frameworks_leads_to_one_that_exists():
    names = {*F.__all__, *PF.__all__, *nn.__all__, *S.__all__, "solvers", "initializer"}
    names |= {*vars(data_iterator), *vars(learning_rate_scheduler)}
    arguments = {f for op in nn.core.ops.op.OPS.values() for f in (*op.fields, *op.inputs)}
    arguments |= {"alpha", "eta", "lr", "beta1", "wd", "outmaps", "n_outmaps", "n_inputs"}
    arguments |= {"n_features", "with_bias", "keepdims", "kernel", "batch_stat"}
    for name, ours in ELSEWHERE.items():
        assert any(o in names | arguments for o in ours), name
