# SPDX-License-Identifier: Apache-2.0
"""Steps with programs inside, run in C++: the same bits as Python's runs."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.core.graph.node import capture
from nnl.core.ops.python_function import PythonFunction
from nnl.graph.plan.plan import Plan
from tests.graph import test_loop_types, test_switch, test_while_loop
from tests.graph.saved import normal, training_step
from tests.native.kernels import require_library
from tests.native.test_model import check, model


def test_branches(tmp_path):
    net, path = test_switch.Net(), tmp_path / "net.nnlp"
    ys = net.chosen()
    nn.save_program(path, {"a": ys[0], "b": ys[1]}, {"x": net.x, "i": net.i, "j": net.j})
    found = nn.load_program(path)
    for i, j in ((0, 0), (1, 0), (2, 0), (2, 1)):
        check(found, path, {"x": net.x.d, "i": i, "j": j})
    inputs = {"x": net.x.d, "i": np.array(3, np.float32), "j": net.j.d}
    with pytest.raises(ValueError, match=r"switch.*: index holds 3, and there are 3 branches"):
        model(path).run(inputs)


class Twice(PythonFunction):
    def min_outputs(self):
        return 1

    def setup_impl(self, inputs, outputs):
        outputs[0].reset_shape(inputs[0].shape, True)

    def forward_impl(self, inputs, outputs):
        outputs[0].d = inputs[0].d * 2


def test_plans_run_branches_in_cpp_unless_they_hold_python_code():
    require_library()
    i, x = nn.Variable(()), nn.Variable((5000,))
    i.d, x.d = 1, 3
    for branch, native in ((lambda x: x * 2, True), (Twice(), False)):
        y = nn.switch(i, [lambda x: x, lambda x, f=branch: f(x) + 1], x)
        plan = Plan(capture([y.edge]), {y.edge.key})
        assert [s.kernel is not None for s in plan.steps if s.op == "switch"] == [native]
        y.forward()
        assert (y.d == 7).all()


def test_training_steps_with_branches(tmp_path):
    def network(x, i):
        h = F.relu(PF.batch_normalization(PF.convolution(x, 16, (3, 3), name="c"), name="b"))

        def deep(h):
            return F.dropout(F.relu(PF.convolution(h, 16, (3, 3), pad=(1, 1), name="deep"))) + h

        h = nn.switch(i, [lambda h: h, deep], h)
        return F.mean(PF.affine(h, 5, name="fc") ** 2)

    step, path = training_step(network, S.Adam(0.01)), tmp_path / "step.nnlp"
    values = {"x": normal(4, 8, 8, 8), "i": np.array(1)}
    step(**{k: nn.Variable.from_numpy_array(v) for k, v in values.items()})
    step.save(path)
    for i in (1, 0):
        check(nn.load_program(path), path, {**values, "i": np.array(i)})


def test_state_that_a_branch_writes(tmp_path):
    i, x, path = nn.Variable(()), nn.Variable((64, 3)), tmp_path / "x.nnlp"

    def train(x):
        return F.dropout(PF.batch_normalization(x, name="bn"), 0.5, seed=3)

    nn.save_program(path, {"y": nn.switch(i, [lambda x: x, train], x)}, {"x": x, "i": i})
    for k in (0, 1):
        check(nn.load_program(path), path, {"x": normal(64, 3), "i": k})


def test_loops(tmp_path):
    net, path = test_while_loop.Net(), tmp_path / "net.nnlp"
    outputs = dict(zip("abcde", net.loop(), strict=True))
    nn.save_program(path, outputs, {"x": net.x, "limit": net.limit, "odd": net.start[0]})
    found = nn.load_program(path)
    for n in (0, 1, 4):
        net.trips(n)
        check(found, path, {"x": net.x.d, "limit": net.limit.d, "odd": net.start[0].d})
    with pytest.raises(ValueError, match=r"while.*: switch.*: index holds 3, and there are 2"):
        model(path).run({"x": net.x.d, "limit": np.float32(1e9), "odd": np.float32(3)})


def test_training_steps_with_loops(tmp_path):
    def network(x):
        def grows(h):
            return F.less_scalar(F.mean(F.abs(h)), 20)

        def body(h):
            return F.dropout(F.relu(PF.convolution(h, 8, (3, 3), pad=(1, 1), name="c"))) + h * 1.5

        return F.mean(PF.affine(nn.while_loop(grows, body, x, max_trips=12), 5, name="fc") ** 2)

    step, path = training_step(network, S.Adam(0.01)), tmp_path / "step.nnlp"
    values = {"x": normal(2, 8, 8, 8)}
    step(**{k: nn.Variable.from_numpy_array(v) for k, v in values.items()})
    step.save(path)
    check(nn.load_program(path), path, values)


def test_loops_over_mixed_types(tmp_path):
    """A counter before the state, whole numbers, booleans and halves between floats."""
    path = tmp_path / "x.nnlp"
    for order in test_loop_types.orders():
        net = test_loop_types.Loop(order, 0, rows=True)
        leaves = {k: nn.Variable.from_numpy_array(v) for k, v in net.inputs.items()}
        ys = net.loop(*leaves.values())
        nn.save_program(path, {f"y{k}": y for k, y in enumerate(ys)}, leaves)
        found = nn.load_program(path)
        for n in (0, 3):
            check(found, path, {**net.inputs, "trips": np.array(n, np.int32)})
