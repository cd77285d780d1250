# SPDX-License-Identifier: Apache-2.0
"""Quantization-aware training step by step: first floats, then ranges, then rounded values."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from nnl.converters.nnp.writer import save
from nnl.converters.rewriting.converter import GraphConverter, RemoveFunctionModifier
from nnl.converters.rewriting.normalization import (
    BatchNormalizationFoldingModifier,
    BatchNormalizationSelfFoldingModifier,
    UnfusedBatchNormalizationModifier,
)
from nnl.converters.rewriting.recorders import QNNState, qat_default_config
from nnl.converters.rewriting.recording import (
    QuantizeNonQNNToRecordingModifier,
    QuantizeRecordingToTrainingModifier,
)
from nnl.core.graph.function import Function
from nnl.core.graph.node import capture
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import get_parameters

logger = logging.getLogger("nnl")


class FunctionsRankRecorder:
    """Numbers functions as they are visited; `functions_ranks` are the numbers.

    Args:
        functions_only_for_training: Types of functions that get none, as graphs for tests, whose
            functions are to have the same numbers, do not have them.
    """

    def __init__(
        self, functions_only_for_training: Sequence[str] = ("ImageAugmentation", "Dropout")
    ) -> None:
        self.functions_only_for_training = functions_only_for_training
        self.functions_ranks: dict[Function, int] = {}

    def __call__(self, f: Function) -> None:
        if f.name not in self.functions_only_for_training:
            self.functions_ranks[f] = len(self.functions_ranks)


class QATScheduler:
    """Changes networks in the course of a training so that they learn to compute with 8 bits.

    Args:
        config: A QATConfig, which says at which steps, and how.
        solver: Solver of the training; its parameters and learning rate are changed as well.
    Raises:
        ValueError: The steps at which something changes are not in order.

    Source: Jacob et al., Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference, arXiv:1712.05877, section 3.
    Example:
        >>> import nnl as nn, nnl.parametric_functions as PF, nnl.solvers as S
        >>> from nnl.utils.qnn import QATConfig
        >>> pred = PF.affine(nn.Variable((2, 3)), 4)
        >>> config = QATConfig()
        >>> config.niter_to_recording, config.niter_to_training = 1, 100
        >>> scheduler = QATScheduler(config, S.Sgd())
        >>> scheduler(pred)
        >>> for _ in range(200):
        ...     scheduler.step()  # and one of the training
    """

    def __init__(self, config: Any = qat_default_config, solver: Any = None) -> None:
        first, second = config.niter_to_recording, config.niter_to_training
        if not 0 <= first < second:
            raise ValueError(
                f"QATScheduler: config has niter_to_recording {first} and niter_to_training "
                f"{second}, wanted 0 <= niter_to_recording < niter_to_training"
            )
        self.config, self.solver = config, solver
        self.counter = 0
        self.state = QNNState.NON_QNN
        self.registry: list[tuple[list[Variable], bool]] = []

    def __call__(self, pred: Variable | Sequence[Variable], training: bool = True) -> None:
        """Change this network from now on.

        Args:
            pred: Its outputs; what was computed from them will be computed from the new ones.
            training: False for a network that tests use, which records nothing.
        """
        self.registry.append(([pred] if isinstance(pred, Variable) else list(pred), training))

    def step(self) -> None:
        """To be called before every step of the training."""
        if self.counter == self.config.niter_to_recording:
            for outputs, training in self.registry:
                self._start_recording(outputs, training)
            self._became(QNNState.RECORDING)
        elif self.counter == self.config.niter_to_training:
            for outputs, _ in self.registry:
                self._start_rounding(outputs)
            self._became(QNNState.TRAINING)
            if self.solver is not None:
                rate = self.solver.learning_rate() * self.config.learning_rate_scale
                self.solver.set_learning_rate(rate)
        self.counter += 1

    def _start_recording(self, outputs: list[Variable], training: bool) -> None:
        c = self.config
        modifiers: list[Any] = []
        if c.bn_folding:
            modifiers += [BatchNormalizationFoldingModifier(o) for o in (False, True)]
        if c.bn_self_folding:
            modifiers.append(BatchNormalizationSelfFoldingModifier())
        if modifiers:
            _replace(outputs, UnfusedBatchNormalizationModifier(), modifiers)
        ranks = _ranks(outputs)
        _replace(outputs, QuantizeNonQNNToRecordingModifier(ranks, c, training))
        for y in outputs:
            y.need_grad = False  # ranges are to be those of a network that stays as it is

    def _start_rounding(self, outputs: list[Variable]) -> None:
        c = self.config
        recorders = [c.recorder_activation().name(), c.recorder_weight().name()]
        _replace(outputs, RemoveFunctionModifier(recorders))
        _replace(outputs, QuantizeRecordingToTrainingModifier(_ranks(outputs), c))

    def _became(self, state: QNNState) -> None:
        logger.info("QATScheduler: %s -> %s at step %d", self.state, state, self.counter)
        self.state = state
        if self.solver is not None and (self.config.bn_folding or self.config.bn_self_folding):
            self.solver.set_parameters(get_parameters(grad_only=True))

    def save(
        self,
        fname: str,
        inputs: Variable | Sequence[Variable],
        batch_size: int = 1,
        net_name: str = "net",
        deploy: bool = False,
    ) -> None:
        """Write the network for tests to a file.

        Args:
            fname: Path of a .nnp file.
            inputs: Inputs of the network, called x0, x1, ... in the file; outputs are y0, y1, ...
            batch_size: Of the network in the file.
            net_name: Its name.
            deploy: Must be False.
        Raises:
            ValueError: No network was registered with training=False.
            NotImplementedError: deploy is True.
        """
        if deploy:
            raise NotImplementedError("QATScheduler.save: deploy is True, wanted False")
        nets = [outputs for outputs, training in self.registry if not training]
        if not nets:
            raise ValueError("QATScheduler.save: no network was given with training=False")
        given = [inputs] if isinstance(inputs, Variable) else list(inputs)
        xs = {f"x{i}": v for i, v in enumerate(given)}
        ys = {f"y{i}": v for i, v in enumerate(nets[-1])}
        network = {"name": net_name, "batch_size": batch_size, "outputs": ys, "names": xs}
        executor = {"name": "runtime", "network": net_name, "data": list(xs), "output": list(ys)}
        save(fname, {"networks": [network], "executors": [executor]})


def _replace(outputs: list[Variable], *modifiers: Any) -> None:
    new = GraphConverter(modifiers).convert(outputs)
    for old, y in zip(outputs, new, strict=True):
        old.rewire_on(y)


def _ranks(outputs: list[Variable]) -> dict[Function, int]:
    recorder = FunctionsRankRecorder()
    for node in capture([y.edge for y in outputs]):
        recorder(Function(node))
    return recorder.functions_ranks
