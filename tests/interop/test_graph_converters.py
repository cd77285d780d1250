# SPDX-License-Identifier: Apache-2.0
"""Modifiers of graphs leave the same functions with the same results in NNabla and in nnl."""

import numpy as np
import pytest

from tests.interop.here import check_script

pytestmark = pytest.mark.interop

START = """
import importlib
GC = importlib.import_module(nn.__name__ + ".experimental.graph_converters")

def residual(x, bias, test=True):
    h = PF.convolution(x, 4, (3, 3), pad=(1, 1), with_bias=bias, name="c1")
    h = F.relu(PF.batch_normalization(h, batch_stat=not test, name="b1"))
    h = PF.convolution(h, 4, (3, 3), pad=(1, 1), with_bias=bias, group=2, name="c2")
    h = PF.batch_normalization(h, batch_stat=not test, name="b2")
    h = F.relu(h + PF.convolution(x, 4, (1, 1), name="c3"))
    return PF.affine(F.average_pooling(h, (2, 2)), 3, name="a")

def normalized_first(x, test=True):
    h = PF.batch_normalization(x, batch_stat=not test, name="b1")
    h = F.relu(PF.convolution(h, 4, (3, 3), name="c1"))
    h = PF.batch_normalization(h, batch_stat=not test, name="b2")
    return PF.affine(h, 3, name="a")

def look(key, y):
    types = []
    y.visit(lambda f: types.append(f.info.type_name))
    # NNabla visits depth first, nnl in the order of the program
    outputs["types of " + key] = sorted(types)
    y.forward()
    outputs[key] = y.d

def start(network, *args, **kw):
    nn.clear_parameters()
    x = nn.Variable.from_numpy_array(inputs["x"])
    rng = np.random.RandomState(0)
    y = network(x, *args, **kw)
    for p in nn.get_parameters(grad_only=False).values():
        p.d = rng.uniform(0.5, 1.5, p.shape)
    return x, y
"""

SCRIPTS = {
    "folding": """
for bias in (False, True):
    for test in (False, True):
        x, y = start(residual, bias, test)
        y = GC.GraphConverter(GC.BatchNormalizationFoldingModifier()).convert(y)
        look(f"{bias} {test}", y)
outputs["w-folded"] = nn.get_parameters()["c1/conv/w-folded"].d
outputs["b-folded"] = nn.get_parameters()["c1/conv/b-folded"].d
""",
    "opposite folding": """
x, y = start(normalized_first)
if nn.__name__ == "nnl":  # in NNabla the values change
    y = GC.GraphConverter([GC.BatchNormalizationFoldingModifier(opposite=True)]).convert(y)
y.forward()
outputs["y"] = y.d
""",
    "self-folding": """
x, y = start(residual, True, False)
look("y", GC.GraphConverter([GC.BatchNormalizationSelfFoldingModifier()]).convert(y))
""",
    "fused": """
for test in (True, False):
    x, y = start(residual, False, test)
    for name, p in nn.get_parameters(grad_only=False).items():
        p.d = 0 if name.endswith(("beta", "mean")) else 1  # NNabla makes new parameters
    y = GC.GraphConverter([GC.FusedBatchNormalizationModifier()]).convert(y)
    look(f"{test}", y)
    y = GC.GraphConverter([GC.UnfusedBatchNormalizationModifier()]).convert(y)
    look(f"unfused {test}", y)
""",
    "pruning": """
for threshold in (3.0, 12.0, 40.0):
    x, y = start(residual, True)
    rng = np.random.RandomState(1)
    for p in nn.get_parameters().values():
        p.d = rng.normal(size=p.shape)
    y = GC.GraphConverter([GC.PruningModifier(threshold)]).convert(y)
    look(f"{threshold}", y)
    for name in ("c1/conv/w-pruned", "c1/conv/b-pruned", "a/affine/w-pruned"):
        outputs[f"{name} {threshold}"] = nn.get_parameters()[name].d
""",
    "biases": """
for network, args in ((residual, (False,)), (normalized_first, ())):
    x, y = start(network, *args)
    look(network.__name__, GC.GraphConverter([GC.AddBiasModifier()]).convert(y))
    outputs["names " + network.__name__] = sorted(nn.get_parameters())
""",
    "own": """
class Tripled(GC.FunctionModifier):
    def __init__(self):
        super().__init__()
        self.finished = 0

    def modify(self, f, inputs):
        if f.info.type_name == "Convolution":
            return self._modify_as_same(f, inputs) * 3
        if f.info.type_name == "ReLU":
            return self._call_function("LeakyReLU", inputs, {"alpha": 0.3, "inplace": False})

    def __finish__(self):
        self.finished += 1

x, y = start(residual, True)
tripled = Tripled()
look("y", GC.GraphConverter([[tripled, [tripled]], GC.TestModeModifier()]).convert(y))
outputs["finished"] = tripled.finished
""",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_modified_graphs_equal_nnabla(nnabla, name):
    inputs = {"x": np.random.default_rng(0).normal(size=(2, 4, 6, 6)).astype(np.float32)}
    check_script(nnabla, START + SCRIPTS[name], inputs, atol=1e-4)
