# SPDX-License-Identifier: Apache-2.0
"""A network on pictures, its loss and its solvers, and one step of training."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.core.arrays.spec import ShapeError
from nnl.models import build, load_torch_weights, synchronised
from nnl.training.moving_average import MovingAverage
from nnl.utils.dlpack import from_dlpack

# Of the channels of ImageNet's pictures, which torchvision's and timm's weights expect.
MEAN = np.array([123.675, 116.28, 103.53], np.float32).reshape(1, 3, 1, 1)
STD = np.array([58.395, 57.12, 57.375], np.float32).reshape(1, 3, 1, 1)
FIRST_LOSS_SCALE = 2.0**12


def normalised(x: Any) -> Any:
    """(B, 3, H, W) of 0 to 255, each channel made to have mean 0 and deviation 1."""
    fixed = nn.parameter.get_parameter_or_create
    with nn.parameter_scope("input"):
        mean = fixed("mean", MEAN.shape, MEAN, need_grad=False)
        scale = fixed("scale", STD.shape, 1 / STD, need_grad=False)
    return (x - mean) * scale


def network_parameters() -> dict[str, Any]:
    """All parameters but those of `normalised`."""
    every = nn.get_parameters(grad_only=False)
    return {key: v for key, v in every.items() if not key.startswith("input/")}


def close_branches(parameters: dict[str, Any]) -> None:
    """Let every block of a ResNet give its input at first: its last normalisation scales by 0.

    Source: Goyal et al., arXiv:1706.02677, section 5.1.
    """
    last: dict[str, Any] = {}
    for key, v in parameters.items():
        if found := re.fullmatch(r"(stage\d/block\d+)/conv\d/bn/gamma", key):
            last[found[1]] = v
    for v in last.values():
        v.d = 0


def begin_with(path: Path) -> None:
    """Load weights of torchvision or timm; those of the last layer if the classes are as many."""
    try:
        load_torch_weights(path)
    except ShapeError:
        load_torch_weights(path, classifier=False)


def mixing(options: Any, place: tuple[int, ...]) -> np.ndarray:
    """How much of each pixel stays, (1, 1, S, S); the rest is another picture's.

    Mixup fades pictures into each other, cutmix cuts a rectangle out; where both are wanted each
    is used every other time. Sources: Zhang et al., arXiv:1710.09412; Yun et al., arXiv:1905.04899.

    Args:
        place: What the random numbers depend on.
    """
    size, rng = options.size, np.random.default_rng(place)
    share = np.ones((1, 1, size, size), np.float32)
    kinds = [(name, a) for name in ("mixup", "cutmix") if (a := getattr(options, name))]
    name, alpha = kinds[rng.integers(len(kinds))]
    kept = rng.beta(alpha, alpha)
    if name == "mixup":
        share[:] = kept
    else:
        side = size * np.sqrt(1 - kept) / 2
        top, left = rng.uniform(0, size, 2)
        rows, columns = (slice(int(max(c - side, 0)), int(c + side)) for c in (top, left))
        share[:, :, rows, columns] = 0
    return share


def cross_entropy(y: Any, label: Any, share: Any, classes: int, smoothing: float) -> Any:
    """The mean loss of scores (B, classes) for labels (B, 1), of which a share is right.

    Smoothed labels are 1 - smoothing at the right class and smoothing / classes everywhere:
    Szegedy et al., arXiv:1512.00567, section 7. Mixed ones are those of the picture and of the
    one that it is mixed with.
    """
    loss = F.mean(F.softmax_cross_entropy(y, label))
    if share is not None:
        kept, other = F.mean(share), F.flip(label, axes=[0])
        loss = kept * loss + (1.0 - kept) * F.mean(F.softmax_cross_entropy(y, other))
    if smoothing:
        loss = (1 - smoothing) * loss - smoothing * F.mean(F.log_softmax(y, axis=1))
    return loss


def solvers_of(options: Any, rate: float, parameters: dict[str, Any]) -> list[Any]:
    """A solver of what decays, and one of biases and of what normalisations learn."""
    mu = options.momentum
    make = {
        "sgd": lambda: S.Momentum(rate, mu),
        "lars": lambda: S.Lars(rate, mu),
        "rmsprop": lambda: S.RMSpropGraves(rate, 0.9, mu, 1e-3),
        "adamw": lambda: S.AdamW(rate, wd=0.0),
    }
    first = make[options.solver]()
    # layers with one number per channel have no norm to speak of
    second = make["sgd" if options.solver == "lars" else options.solver]()
    decays = {k: options.decay_all or k.endswith("/W") for k in parameters}
    first.set_parameters({k: v for k, v in parameters.items() if decays[k]})
    second.set_parameters({k: v for k, v in parameters.items() if not decays[k]})
    return [first, second]


class Training:
    """What one step of training computes, and all that it changes.

    Attributes:
        solvers: Two of them, see solvers_of. scale: The loss scale, which is 1 all the time where
            only norms are clipped; or None.
        average: Moving averages of the network's parameters, or None.
    """

    def __init__(self, options: Any, comm: Any, classes: int, peak_rate: float) -> None:
        self.options, self.comm, self.classes = options, comm, classes
        self.mixed = bool(options.mixup or options.cutmix)
        self.now = options.mode in ("dynamic", "coexecute")  # functions compute at once
        self.decay = options.weight_decay * (peak_rate if options.solver == "adamw" else 1.0)
        b, s = options.batch_size, options.size
        self.picture = nn.Variable.from_numpy_array(np.zeros((b, s, s, 3), np.uint8))
        self.label = nn.Variable.from_numpy_array(np.zeros((b, 1), np.int32))
        self.share = nn.Variable((1, 1, s, s))
        with nn.auto_forward(False):
            loss = self.loss_of(self.picture, self.label, self.share)  # makes the parameters
        if options.zero_gamma:
            close_branches(network_parameters())
        if options.weights is not None:
            begin_with(options.weights)
        self.loss = loss if options.mode == "static" else None
        parameters = {k: v for k, v in network_parameters().items() if v.need_grad}
        self.solvers = solvers_of(options, peak_rate, parameters)
        self.scale: Any = None
        if options.type_config == "half":
            self.scale = S.LossScale(self.solvers, FIRST_LOSS_SCALE)
        elif options.clip_norm:
            self.scale = S.LossScale(self.solvers, 1.0, low=1.0, high=1.0)
        decay = options.ema**options.ema_every  # the option is that of one step
        self.average = MovingAverage(network_parameters(), decay) if options.ema else None
        self.reduce = comm.all_reduce_callback(
            [v.grad for v in parameters.values()], pack_size=1 << 20, division=True
        )
        self.step = self.run
        if options.mode == "compile":
            self.step = nn.compile(self.run)
        elif options.mode == "coexecute":
            self.step = nn.coexecute(self.run, reproducible=True)

    def loss_of(self, picture: Any, label: Any, share: Any) -> Any:
        """The loss of a batch, divided by the number of batches of an update."""
        options, apart = self.options, self.comm.size > 1 and self.options.sync_bn
        x = normalised(F.transpose(picture, (0, 3, 1, 2)))
        if self.mixed:
            x = share * x + (1.0 - share) * F.flip(x, axes=[0])
        more = {} if options.dropout is None else {"dropout": options.dropout}
        with synchronised(self.comm) if apart else nullcontext():
            y = build(options.network, x, self.classes, **more)
        share = share if self.mixed else None
        loss = cross_entropy(y, label, share, self.classes, options.smoothing)
        return loss if options.accumulate == 1 else loss * (1 / options.accumulate)

    def run(self, picture: Any, label: Any, share: Any, first: bool, last: bool) -> Any:
        """One pass; the first one of an update forgets gradients, the last one updates."""
        loss = self.loss_of(picture, label, share) if self.loss is None else self.loss
        if not self.now:
            loss.forward(clear_no_need_grad=True)
        if first:
            for solver in self.solvers:
                solver.zero_grad()
        start = 1.0 if self.scale is None else self.scale.value
        several = last and self.comm.size > 1
        reduce = {"communicator_callbacks": self.reduce} if several else {}
        loss.backward(start, clear_buffer=True, **reduce)
        if last:
            self.update()
        return loss

    def update(self) -> None:
        """Change the parameters by their gradients."""
        if self.scale is not None:
            self.scale.update([self.decay, 0.0], self.options.clip_norm)
            return
        for solver, decay in zip(self.solvers, (self.decay, 0.0), strict=True):
            solver.weight_decay(decay)
            solver.update()

    def __call__(self, pictures: Any, labels: Any, place: tuple[int, ...], number: int) -> Any:
        """One pass on arrays as the loader gives them.

        Args:
            place: (seed, epoch, batch, rank): all that is random in the step depends on it alone.
            number: Which pass of the update this is, from 0.
        Returns:
            The loss, divided by the number of passes.
        """
        nn.seed(int(np.random.SeedSequence(place).generate_state(1)[0]), set_parameter_seed=False)
        if self.now:  # a step that is put off may still hold those of the last one
            shapes = pictures.shape, labels.shape, self.share.shape
            self.picture, self.label, self.share = map(nn.Variable, shapes)
        self.picture.data = from_dlpack(pictures)  # shares the loader's memory
        self.label.data = from_dlpack(labels)
        if self.mixed:
            self.share.d = mixing(self.options, place)
        first, last = number == 0, number == self.options.accumulate - 1
        with nn.auto_forward(self.now):
            return self.step(self.picture, self.label, self.share, first, last)


class Evaluation:
    """The same network with running statistics: scores of batches of pictures."""

    def __init__(self, options: Any, batch_size: int, classes: int) -> None:
        size = options.size
        self.picture = nn.Variable.from_numpy_array(np.zeros((batch_size, size, size, 3), np.uint8))
        with nn.auto_forward(False):
            x = normalised(F.transpose(self.picture, (0, 3, 1, 2)))
            self.scores = build(options.network, x, classes, test=True)

    def __call__(self, pictures: np.ndarray) -> np.ndarray:
        self.picture.data = from_dlpack(pictures)
        with nn.auto_forward(False):
            self.scores.forward(clear_buffer=True)
        return self.scores.d


def right(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """How many labels are the best score, and among the best five, and how many there are.

    A label of -1 has no picture.
    """
    there = labels[:, 0] >= 0
    scores, labels = scores[there], labels[there]
    above = (scores > np.take_along_axis(scores, labels, 1)).sum(1)
    return np.array([(above < 1).sum(), (above < 5).sum(), len(labels)], np.float64)
