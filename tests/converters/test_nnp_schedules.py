# SPDX-License-Identifier: Apache-2.0
"""Learning-rate schedulers in files."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

import nnl as nn
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.utils.learning_rate_scheduler import (
    BaseLearningRateScheduler,
    CosineScheduler,
    ExponentialScheduler,
    LinearWarmupScheduler,
    PolynomialScheduler,
    StepScheduler,
)
from nnl.utils.load import load
from nnl.utils.save import save

BASE = """
network { name: "n" batch_size: 2
  variable { name: "w" type: "Parameter" shape { dim: 2 } }
  variable { name: "y" shape { dim: 2 } }
  function { name: "f" type: "Tanh" input: "w" output: "y" } }
optimizer { name: "o" network_name: "n" loss_variable { variable_name: "y" }
  solver { type: "Sgd" sgd_param { lr: 0.5 } %s } }
"""


def rates(solver: str) -> list[float]:
    found = load(io.BytesIO((BASE % solver).encode())).optimizers["o"].scheduler
    return [found.get_learning_rate(i) for i in (0, 1, 4, 9)]


# What NNabla 1.39 answers, with its rate 0.5.
@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", [0.5] * 4),
        ("lr_decay: 0.5 lr_decay_interval: 4", [0.5, 0.5, 0.25, 0.125]),
        (
            'lr_scheduler_type: "Polynomial" polynomial_scheduler_param { max_iter: 10 power: 2 }',
            [0.5, 0.405, 0.18, 0.005],
        ),
        (
            'lr_scheduler_type: "Cosine" cosine_scheduler_param { max_iter: 10 }',
            [0.5, 0.4877641290737884, 0.32725424859373686, 0.012235870926211617],
        ),
        (
            'lr_scheduler_type: "Exponential" exponential_scheduler_param { gamma: 0.5 }',
            [0.5, 0.25, 0.03125, 0.0009765625],
        ),
        (
            'lr_scheduler_type: "Step" step_scheduler_param { gamma: 0.5 iter_steps: [3, 5] }',
            [0.5, 0.5, 0.25, 0.125],
        ),
        ('lr_scheduler_type: "None"', [0.5, 0.5, 0.5, 0.5]),
        (
            'lr_warmup_scheduler_type: "Linear" linear_warmup_scheduler_param { warmup_iter: 4 }',
            [0.125, 0.25, 0.5, 0.5],
        ),
    ],
)
def test_schedulers_of_files_become_objects(text: str, want: list[float]) -> None:
    assert rates(text) == pytest.approx(want)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ('lr_scheduler_type: "Custom"', NotImplementedError, "scheduler Custom is not supported"),
        ('lr_scheduler_type: "Nome"', ValueError, "optimizer 'o': the learning-rate scheduler 'N"),
        ('lr_warmup_scheduler_type: "Cosine"', ValueError, "the warm-up 'Cosine' is unknown"),
        ('lr_scheduler_type: "Cosine"', ValueError, "optimizer 'o': CosineScheduler: max_iter"),
    ],
)
def test_unknown_schedulers_are_refused(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        rates(text)


def network() -> dict:
    x = nn.Variable((2, 3))
    solver = S.Sgd(0.5)
    y = PF.affine(x, 2)
    solver.set_parameters(nn.get_parameters())
    data = {"name": "d", "uri": "", "batch_size": 2, "variables": ["x"]}
    optimizer = {"name": "o", "network": "n", "dataset": "d", "solver": solver}
    net = {"name": "n", "batch_size": 2, "outputs": {"y": y}, "names": {"x": x}}
    return {"networks": [net], "datasets": [data], "optimizers": [optimizer]}


@pytest.mark.parametrize(
    "scheduler",
    [
        PolynomialScheduler(0.5, 10, 2.0),
        CosineScheduler(0.5, 10),
        ExponentialScheduler(0.5, 0.5, 3),
        StepScheduler(0.5, 0.5, [3, 5]),
        LinearWarmupScheduler(CosineScheduler(0.5, 10), 4),
    ],
)
def test_schedulers_are_saved_on_request(
    tmp_path: Path, scheduler: BaseLearningRateScheduler
) -> None:
    contents = network()
    contents["optimizers"][0]["scheduler"] = scheduler
    save(tmp_path / "a.nnp", contents)
    nn.clear_parameters()
    back = load(tmp_path / "a.nnp").optimizers["o"].scheduler
    assert type(back) is type(scheduler)
    for i in range(12):
        assert back.get_learning_rate(i) == pytest.approx(scheduler.get_learning_rate(i))


def test_other_schedulers_cannot_be_saved(tmp_path: Path) -> None:
    contents = network()
    contents["optimizers"][0]["scheduler"] = BaseLearningRateScheduler()
    with pytest.raises(TypeError, match="optimizer 'o': scheduler is BaseLearningRateScheduler"):
        save(tmp_path / "a.nnp", contents)
