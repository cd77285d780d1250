# SPDX-License-Identifier: Apache-2.0
"""Names that do not exist: what was meant."""

import importlib

import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.core.suggest import ELSEWHERE

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
    ],
)
def test_unknown_names_of_modules(module, name, meant):
    text = rf"^module '{module}' has no attribute '{name}': did you mean {meant}\?$"
    with pytest.raises(AttributeError, match=text):
        getattr(importlib.import_module(module), name)


def test_nothing_is_suggested_for_what_looks_like_nothing():
    with pytest.raises(AttributeError, match="^module 'nnl.functions' has no attribute 'xyzzy'$"):
        F.xyzzy  # noqa: B018
    assert not hasattr(F, "__wrapped__") and not hasattr(nn, "_x")


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
    names = {*F.__all__, *PF.__all__, *nn.__all__}
    arguments = {f for op in nn.core.op.OPS.values() for f in (*op.fields, *op.inputs)}
    arguments |= {"alpha", "eta", "lr", "beta1", "wd", "outmaps", "n_outmaps", "n_inputs"}
    arguments |= {"n_features", "with_bias", "keepdims", "kernel"}
    for name, ours in ELSEWHERE.items():
        assert any(o in names | arguments for o in ours), name
