# SPDX-License-Identifier: Apache-2.0
"""Training files as NNabla's tools write them: text, with initialisers, and data sets as .csv."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.converters.nnp.writer import to_text
from nnl.utils.save import create_proto

ROWS, BATCH = 48, 8
# Leaf of a parameter's name -> how it begins.
INITIALIZERS = {
    "W": ("UniformAffineGlorot", 1.0),
    "b": ("Constant", 0.0),
    "beta": ("Constant", 0.0),
    "mean": ("Constant", 0.0),
    "gamma": ("Constant", 1.0),
    "var": ("Constant", 1.0),
}
Network = Callable[[nn.Variable, nn.Variable, bool], nn.Variable]


def affine(x: nn.Variable, t: nn.Variable, train: bool) -> nn.Variable:
    h = F.tanh(PF.affine(x, 12, name="first"))
    return F.softmax_cross_entropy(PF.affine(h, 3, name="last"), t)


def normalized(x: nn.Variable, t: nn.Variable, train: bool) -> nn.Variable:
    h = PF.affine(x, 12, with_bias=False, name="first")
    h = F.relu(PF.batch_normalization(h, batch_stat=train))
    h = F.concatenate(PF.affine(h, 4, name="a"), PF.affine(h, 5, name="b"))
    return F.softmax_cross_entropy(PF.affine(h, 3, name="last"), t)


def write_rows(path: Path, rows: int = ROWS, seed: int = 0) -> Path:
    """Three noisy clusters in six dimensions, with the label in the last column."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, rows)
    x = rng.normal(size=(rows, 6)) + 1.5 * np.eye(3, 6)[y]
    header = ",".join([*(f"x__{i}:f{i}" for i in range(6)), "y:label"])
    lines = [
        ",".join([*(f"{v:.6f}" for v in row), str(label)]) for row, label in zip(x, y, strict=True)
    ]
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def contents(
    folder: Path,
    network: Network = affine,
    solver: S.Solver | None = None,
    epochs: int = 3,
    dataset: Mapping[str, Any] | None = None,
    **optimizer: Any,
) -> dict[str, Any]:
    """What save() takes: training, its test network, two data sets, a monitor for each."""
    train, valid = folder / "train.csv", folder / "valid.csv"
    write_rows(train), write_rows(valid, 24, 1)
    networks = []
    for name, training in (("Main", True), ("MainValidation", False)):
        x, t = nn.Variable((BATCH, 6)), nn.Variable((BATCH, 1))
        loss = network(x, t, training)
        networks.append(
            {
                "name": name,
                "batch_size": BATCH,
                "outputs": {"loss": loss},
                "names": {"x": x, "t": t},
            }
        )
    solver = S.Sgd(0.1) if solver is None else solver
    solver.set_parameters(nn.get_parameters())
    data = {"x": "x", "t": "y"}
    shared = {"variables": ["x", "y"], "batch_size": BATCH}
    monitors = [
        {"name": name, "network": "MainValidation", "dataset": d, "data_variables": data}
        for name, d in (("train_error", "Training"), ("valid_error", "Validation"))
    ]
    return {
        "global_config": {"default_context": nn.Context(["cpu:float"], "CpuCachedArray", "0")},
        "training_config": {
            "max_epoch": epochs,
            "iter_per_epoch": ROWS // BATCH,
            "save_best": True,
            "monitor_interval": 2,
        },
        "networks": networks,
        "datasets": [
            {"name": "Training", "uri": str(train), "shuffle": True, **shared, **(dataset or {})},
            {"name": "Validation", "uri": str(valid), **shared},
        ],
        "optimizers": [
            {
                "name": "opt",
                "solver": solver,
                "network": "Main",
                "dataset": "Training",
                "data_variables": data,
                **optimizer,
            }
        ],
        "monitors": monitors,
        "executors": [
            {"name": "Executor", "network": "MainValidation", "data": ["x"], "output": ["loss"]}
        ],
    }


def write_training_file(
    path: Path, change: Callable[[Any], None] = lambda proto: None, **options: Any
) -> Path:
    """Write a training file and its data beside it; `change` may edit the message before."""
    with nn.parameter_scope("", OrderedDict()):
        proto = create_proto(contents(path.parent, **options))
    for network in proto.network:
        for v in network.variable:
            if v.type == "Parameter":
                kind, multiplier = INITIALIZERS[v.name.rpartition("/")[2]]
                v.initializer.type, v.initializer.multiplier = kind, multiplier
    change(proto)
    path.write_bytes(to_text(proto))
    return path
