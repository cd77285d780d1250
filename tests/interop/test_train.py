# SPDX-License-Identifier: Apache-2.0
"""`nnl train` and NNabla's own command on the same files: the same monitored values."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl.solvers as S
from nnl.cli.main import main, parser
from nnl.converters.nnp.archive import read_files
from tests.cli.training_files import BATCH, ROWS, normalized, write_rows, write_training_file
from tests.interop.bridge import Nnabla

pytestmark = pytest.mark.interop


def report(path: Path) -> dict[str, list[float]]:
    """The values of monitoring_report.yml by name, one per epoch."""
    found: dict[str, list[float]] = {}
    for name, value in re.findall(r"^  (\w+): (.*)$", path.read_text(), re.MULTILINE):
        found.setdefault(name, []).append(float(value))
    return found


def theirs(nnabla: Nnabla, config: Path, out: Path, *options: str) -> None:
    """Run NNabla's command, for which the folder must be there."""
    out.mkdir(exist_ok=True)
    command = [nnabla.python, "-m", "nnabla.utils.cli.cli", "train"]
    subprocess.run(
        [*command, "-c", str(config), "-o", str(out), *options],
        check=True,
        capture_output=True,
        timeout=300,
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
    )


def step_schedule(proto: Any) -> None:
    solver = proto.optimizer[0].solver
    solver.lr_scheduler_type = "Step"
    solver.step_scheduler_param.gamma = 0.5
    solver.step_scheduler_param.iter_steps.extend([4, 9])


def warm_cosine(proto: Any) -> None:
    solver = proto.optimizer[0].solver
    solver.lr_scheduler_type = "Cosine"
    solver.cosine_scheduler_param.max_iter = 24
    solver.lr_warmup_scheduler_type = "Linear"
    solver.linear_warmup_scheduler_param.warmup_iter = 5


def old_decay(proto: Any) -> None:
    solver = proto.optimizer[0].solver
    solver.lr_decay, solver.lr_decay_interval = 0.9, 3


def two_optimizers(proto: Any) -> None:
    """The second one trains the last layer only, from the seventh iteration on."""
    first = proto.optimizer[0]
    second = proto.optimizer.add()
    second.CopyFrom(first)
    second.name, second.start_iter = "second", 7
    for p in list(second.parameter_variable):
        if not p.variable_name.startswith("last"):
            second.parameter_variable.remove(p)


def late_optimizers(proto: Any) -> None:
    """Nothing trains in the first two and the last steps of some epochs."""
    two_optimizers(proto)
    proto.optimizer[0].start_iter, proto.optimizer[0].end_iter = 3, 10
    proto.optimizer[1].end_iter = 21


def parts_of_names(proto: Any) -> None:
    """The parameters of a layer by what their names begin with; one is not to be trained."""
    parameters = proto.optimizer[0].parameter_variable
    del parameters[:]
    parameters.add(variable_name="last", learning_rate_multiplier=1.0)
    parameters.add(variable_name="first/affine/W", learning_rate_multiplier=-1.0)
    parameters.add(variable_name="first/affine/b", learning_rate_multiplier=0.5)


def noise(proto: Any) -> None:
    """Train and test on inputs of a generator, with the labels of the data set."""
    for part in (proto.optimizer[0], proto.monitor[0]):
        data = [v for v in part.data_variable if v.data_name == "x"]
        made = part.generator_variable.add()
        made.variable_name, made.type, made.multiplier = data[0].variable_name, "Normal", 0.5
        part.data_variable.remove(data[0])


CASES: dict[str, dict[str, Any]] = {
    "sgd with weight decay": {"weight_decay": 0.01, "change": step_schedule},
    "adam, normalised": {"network": normalized, "solver": S.Adam(0.01), "change": warm_cosine},
    "momentum every second step": {
        "solver": S.Momentum(0.05),
        "update_interval": 2,
        "change": old_decay,
    },
    "two optimizers": {"change": two_optimizers},
    "optimizers that begin late": {"change": late_optimizers},
    "parts of names": {"change": parts_of_names},
    "generators": {"change": noise, "solver": S.RMSprop(0.01)},
}


@pytest.mark.parametrize("case", CASES)
def test_monitored_values_are_those_of_nnabla(nnabla: Nnabla, tmp_path: Path, case: str) -> None:
    config = write_training_file(tmp_path / "net.nntxt", epochs=4, **CASES[case])
    theirs(nnabla, config, tmp_path / "theirs")
    assert main(["train", "-c", str(config), "-o", str(tmp_path / "ours")]) == 0
    want = report(tmp_path / "theirs" / "monitoring_report.yml")
    got = report(tmp_path / "ours" / "monitoring_report.yml")
    assert len(want["cost"]) == 4 and 4 * ROWS // BATCH >= 20
    assert got.keys() == want.keys()
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=2e-5, err_msg=name)
    a, b = (
        {p.name: p.value for p in read_files(str(tmp_path / d / name), "", "test").stored}
        for d, name in (("ours", "results_current_4.nnp"), ("theirs", "results_current_4.nnp"))
    )
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=2e-4, atol=2e-6, err_msg=name)


SAVED = """
import sys
import nnabla as nn
import nnabla.functions as F
import nnabla.parametric_functions as PF
import nnabla.solvers as S
from nnabla.utils.save import save

folder, x, t = sys.argv[1], nn.Variable((8, 6)), nn.Variable((8, 1))
loss = F.softmax_cross_entropy(PF.affine(F.tanh(PF.affine(x, 12, name="a")), 3, name="b"), t)
solvers = [S.Adadelta(), S.Adagrad(), S.AdaBelief(wd=0.01, weight_decouple=True),
           S.Adam(0.01), S.Adamax(0.01), S.Momentum(0.05), S.Nesterov(0.05), S.RMSprop(0.01),
           S.RMSpropGraves(0.01), S.Sgd(0.1)]
rows = dict(variables=["x", "y"], batch_size=8, no_image_normalization=False)
use = dict(network="Main", data_variables={"x": "x", "t": "y"})
for solver in solvers:
    solver.set_parameters(nn.get_parameters())
    save(f"{folder}/{solver.name}.nntxt", {
        "global_config": {"default_context": nn.Context(["cpu:float"], "CpuCachedArray", "0")},
        "training_config": {"max_epoch": 4, "iter_per_epoch": 5, "save_best": True},
        "networks": [dict(name="Main", batch_size=8, outputs={"loss": loss},
                          names={"x": x, "t": t})],
        "datasets": [dict(rows, name="A", uri=f"{folder}/train.csv", shuffle=True),
                     dict(rows, name="B", uri=f"{folder}/valid.csv", shuffle=False)],
        "optimizers": [dict(use, name="opt", dataset="A", solver=solver, weight_decay=0.01,
                            lr_decay=0.9, lr_decay_interval=3, update_interval=1)],
        "monitors": [dict(use, name="valid_error", dataset="B")],
        "executors": [dict(name="run", network="Main", data=["x", "t"], output=["loss"])],
    })
"""


def test_files_that_nnabla_saves_train_alike(nnabla: Nnabla, tmp_path: Path) -> None:
    write_rows(tmp_path / "train.csv"), write_rows(tmp_path / "valid.csv", 20, 1)
    subprocess.run([nnabla.python, "-c", SAVED, str(tmp_path)], check=True, capture_output=True)
    files = sorted(tmp_path.glob("*.nntxt"))
    assert len(files) == 10
    for config in files:  # without initialisers, which save() leaves out, NNabla begins with zeros
        start = 'initializer { type: "UniformAffineGlorot" multiplier: 1.0 }'
        text = config.read_text().replace('type: "Parameter"', f'type: "Parameter" {start}')
        config.write_text(text)
        out = [config.with_suffix(d) for d in (".theirs", ".ours")]
        theirs(nnabla, config, out[0])
        assert main(["train", "-c", str(config), "-o", str(out[1])]) == 0
        want, got = (report(d / "monitoring_report.yml") for d in out)
        assert want["cost"][3] < want["cost"][0]
        for name in want:
            message = f"{config.stem} {name}"
            np.testing.assert_allclose(got[name], want[name], rtol=2e-5, err_msg=message)


def test_each_resumes_what_the_other_has_begun(nnabla: Nnabla, tmp_path: Path) -> None:
    options: dict[str, Any] = {"solver": S.Adam(0.01), "dataset": {"shuffle": False}}

    def only(epochs: int) -> Callable[[Any], None]:
        return lambda proto: setattr(proto.training_config, "max_epoch", epochs)

    whole = write_training_file(tmp_path / "net.nntxt", epochs=7, **options)
    part = write_training_file(tmp_path / "part.nntxt", epochs=5, change=only(5), **options)
    out = [tmp_path / name for name in ("whole", "ours", "theirs")]
    assert main(["train", "-c", str(whole), "-o", str(out[0])]) == 0
    assert main(["train", "-c", str(part), "-o", str(out[1])]) == 0
    theirs(nnabla, whole, out[1], "-r")
    theirs(nnabla, part, out[2])
    assert main(["train", "-c", str(whole), "-o", str(out[2]), "-r"]) == 0
    want = report(out[0] / "monitoring_report.yml")
    for folder in out[1:]:
        got = report(folder / "monitoring_report.yml")
        for name in want:
            np.testing.assert_allclose(got[name], want[name], rtol=2e-5, err_msg=name)


OPTIONS = """
import argparse, json, sys
found, made = {}, argparse._SubParsersAction.add_parser

def add_parser(self, name, **options):
    found[name] = made(self, name, **options)
    return found[name]

argparse._SubParsersAction.add_parser = add_parser
sys.argv = ["nnabla_cli"]
from nnabla.utils.cli import cli
try:
    cli.main()
except SystemExit:
    pass
print("OPTIONS", json.dumps({n: [o for a in p._actions for o in a.option_strings]
                             for n, p in found.items()}))
"""


def test_every_command_of_nnabla_is_there_with_its_options(nnabla: Nnabla) -> None:
    command = [nnabla.python, "-c", OPTIONS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    line = next(x for x in done.stdout.splitlines() if x.startswith("OPTIONS "))
    theirs = json.loads(line.removeprefix("OPTIONS "))
    ours = parser()._subparsers._group_actions[0].choices
    assert len(theirs) > 15
    for name, options in theirs.items():
        known = {o for a in ours[name]._actions for o in a.option_strings}
        assert set(options) <= known, name
