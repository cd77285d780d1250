# SPDX-License-Identifier: Apache-2.0
"""The solvers: each holds an update rule, its states and a learning rate."""

from nnl.core.arguments.suggest import module_getattr
from nnl.solvers import joined as _joined  # noqa: F401  (an op that plans make)
from nnl.solvers.adagrad import Adadelta, Adagrad, RMSprop, RMSpropGraves
from nnl.solvers.adam import AdaBelief, Adam, Adamax, AdamW
from nnl.solvers.amsgrad import AMSGRAD, AdaBound, AMSBound
from nnl.solvers.base import Solver
from nnl.solvers.clip import clip_grad_norm
from nnl.solvers.lamb import Lamb
from nnl.solvers.lion import Lion
from nnl.solvers.muon import Muon
from nnl.solvers.scaled import LossScale
from nnl.solvers.sgd import Lars, Momentum, Nesterov, Sgd, SgdW
from nnl.solvers.states import SolverState

CATEGORY = "Update"

__all__ = [
    "AMSBound",
    "AMSGRAD",
    "AdaBelief",
    "AdaBound",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Lamb",
    "Lars",
    "Lion",
    "LossScale",
    "Momentum",
    "Muon",
    "Nesterov",
    "RMSprop",
    "RMSpropGraves",
    "Sgd",
    "SgdW",
    "Solver",
    "SolverState",
    "clip_grad_norm",
]

__getattr__ = module_getattr(__name__, lambda: __all__)
