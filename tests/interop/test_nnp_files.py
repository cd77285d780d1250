# SPDX-License-Identifier: Apache-2.0
"""Files of the command line and of graph_def in NNabla, and NNabla's in ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nnl as nn
import nnl.graph_def as graph_def
from nnl.cli.main import main
from tests.cli.test_convert import write_network
from tests.interop.bridge import Nnabla
from tests.interop.here import IMPORTS
from tests.native.kernels import require_library

pytestmark = pytest.mark.interop


RUN = """
info = load(PATH, batch_size=4)
e = list(info.executors.values())[0]
for v in e.dataset_assign:
    v.variable_instance.d = inputs['x']
for v in e.output_assign:
    v.variable_instance.forward()
    outputs['y'] = v.variable_instance.d
"""


@pytest.mark.parametrize("option", [None, "--nnp-parameter-h5", "--nnp-parameter-nntxt"])
def test_nnabla_reads_what_convert_writes(
    nnabla: Nnabla, tmp_path: Path, option: str | None
) -> None:
    write_network(tmp_path / "m.nnp")
    out = tmp_path / "o.nnp"
    args = ["convert", str(tmp_path / "m.nnp"), str(out), "-E", "1", "--split", "4-"]
    assert main([*args, *([option] if option else [])]) == 0
    value = np.random.default_rng(0).normal(size=(4, 3, 6, 6)).astype(np.float32)
    path = str(tmp_path / "o_4_5.nnp")
    theirs = nnabla.exec(IMPORTS + f"PATH = {path!r}\n" + RUN, {"x": value})
    here: dict = {}
    exec(
        f"from nnl.utils.load import load\nPATH = {path!r}\n" + RUN,
        {"inputs": {"x": value}, "outputs": here},
    )
    np.testing.assert_allclose(theirs["y"], here["y"], rtol=1e-5, atol=1e-6)


SAVE = """
x = nn.Variable((2, 1, 12, 12))
h = F.max_pooling(F.relu(PF.convolution(x, 4, (3, 3))), (2, 2))
h = PF.batch_normalization(h, batch_stat=False) * 2
y = F.softmax(PF.affine(F.concatenate(h, F.tanh(h), axis=1), 5))
x.d = inputs["x"]
y.forward()
outputs["y"] = y.d
network = {"name": "n", "batch_size": 2, "outputs": {"y": y}, "names": {"x": x}}
executor = {"name": "run", "network": "n", "data": ["x"], "output": ["y"]}
save(PATH, {"networks": [network], "executors": [executor]})
"""


def test_cpp_runs_what_nnabla_saves(nnabla: Nnabla, tmp_path: Path) -> None:
    lib, path = require_library(), str(tmp_path / "a.nnp")
    x = np.random.default_rng(0).normal(size=(2, 1, 12, 12)).astype(np.float32)
    want = nnabla.exec(IMPORTS + f"PATH = {path!r}\n" + SAVE, {"x": x})["y"]
    got = lib.Model(lib.ModelFile(path), "run").run({"x": x})["y"]
    np.testing.assert_allclose(
        np.frombuffer(got, np.float32).reshape(want.shape), want, rtol=1e-5, atol=1e-6
    )


GRAPH = """
gd = nn.graph_def
x = nn.Variable((4, 6))
x.d = inputs['x']
"""


def test_graphs_as_data_go_both_ways(nnabla: Nnabla, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    inputs = {"x": rng.normal(size=(4, 6)).astype(np.float32)}
    make = (
        "y = F.reshape(F.tanh(PF.affine(x, 3, name='a')), (4, 3, 1), inplace=False)\n"
        "g = gd.create_graph_from_variable('net', y, names={'x': x, 'y': y})\n"
        "y.forward()\noutputs['y'] = y.d\n"
    )
    theirs = tmp_path / "theirs.nnp"
    want = nnabla.exec(GRAPH + make + f"g.save({str(theirs)!r})\n", inputs)
    x = nn.Variable.from_numpy_array(inputs["x"])
    g = graph_def.load(theirs)
    y = g(x)
    y.forward()
    np.testing.assert_allclose(y.d, want["y"], rtol=1e-5)
    assert g.default_graph().inputs == ["x"] and g.default_graph().outputs == ["y"]
    ours = tmp_path / "ours.nnp"
    g.save(ours)
    again = f"y = gd.load({str(ours)!r})(x)\ny.forward()\noutputs['y'] = y.d\n"
    got = nnabla.exec(GRAPH + again, inputs)
    np.testing.assert_allclose(got["y"], want["y"], rtol=1e-5)


SCHEDULE = """
o = load(PATH, prepare_data_iterator=False).optimizers['o']
outputs['rates'] = np.array([o.scheduler.get_learning_rate(i) for i in range(8)])
"""


def test_nnabla_follows_the_scheduler_that_we_save(nnabla: Nnabla, tmp_path: Path) -> None:
    import nnl.parametric_functions as PF
    import nnl.solvers as S
    from nnl.utils.learning_rate_scheduler import LinearWarmupScheduler, StepScheduler
    from nnl.utils.save import save

    x = nn.Variable((2, 3))
    y = PF.affine(x, 2)
    solver = S.Sgd(0.5)
    solver.set_parameters(nn.get_parameters())
    scheduler = LinearWarmupScheduler(StepScheduler(0.5, 0.5, [3, 5]), 2)
    path = tmp_path / "a.nnp"
    net = {"name": "n", "batch_size": 2, "outputs": {"y": y}, "names": {"x": x}}
    data = {"name": "d", "uri": "", "batch_size": 2, "variables": ["x"]}
    optimizer = {"name": "o", "network": "n", "dataset": "d", "solver": solver}
    optimizer |= {"scheduler": scheduler, "data_variables": {"x": "x"}}
    save(path, {"networks": [net], "datasets": [data], "optimizers": [optimizer]})
    theirs = nnabla.exec(IMPORTS + f"PATH = {str(path)!r}\n" + SCHEDULE)
    want = [scheduler.get_learning_rate(i) for i in range(8)]
    np.testing.assert_allclose(theirs["rates"], want, rtol=1e-6)
