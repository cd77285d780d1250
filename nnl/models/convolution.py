# SPDX-License-Identifier: Apache-2.0
"""What the convolutional networks are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from nnl import functions as F
from nnl import parametric_functions as PF
from nnl.parametric_functions.initializer import (
    NormalInitializer,
    calc_normal_std_he_backward,
)

Activation = Callable[[Any], Any] | None

_COMM: ContextVar[Any] = ContextVar("_COMM", default=None)


@contextmanager
def synchronised(comm: Any) -> Iterator[None]:
    """Networks that are built inside the with block normalise with the batches of all processes.

    Their parameters are the same as without, so running statistics may be used alone.

    Example:
        >>> comm = C.MultiProcessDataParallelCommunicator(nn.get_current_context())
        >>> comm.init()
        >>> x = nn.Variable((2, 3, 32, 32))
        >>> with nn.parameter_scope("synchronised"), models.synchronised(comm):
        ...     models.resnet(x, depth=18, num_classes=10).shape
        (2, 10)
    """
    before = _COMM.set(comm)
    try:
        yield
    finally:
        _COMM.reset(before)


def conv_bn(
    x: Any,
    channels: int,
    kernel: int,
    name: str,
    test: bool,
    stride: int = 1,
    group: int = 1,
    activation: Activation = F.relu,
    decay: float = 0.9,
    eps: float = 1e-5,
) -> Any:
    """Convolution that keeps the size at stride 1, batch normalisation, activation.

    Args:
        x: (B, C, H, W).
        channels: Number of output channels.
        kernel: Its height and width, odd.
        test: Normalise with the running statistics.
        group: Groups of channels that are convolved independently.
        activation: Applied last; None is none.
        decay, eps: Of the batch normalisation.
    """
    inputs = x.shape[1] // group
    he = NormalInitializer(calc_normal_std_he_backward(inputs, channels // group, (kernel, kernel)))
    h = PF.convolution(
        x,
        channels,
        (kernel, kernel),
        pad=(kernel // 2, kernel // 2),
        stride=(stride, stride),
        group=group,
        w_init=he,
        with_bias=False,
        name=name,
    )
    settings = {"decay_rate": decay, "eps": eps, "name": name}
    comm = None if test else _COMM.get()
    if comm is None:
        h = PF.batch_normalization(h, batch_stat=not test, **settings)
    else:
        h = PF.sync_batch_normalization(h, comm, **settings)
    return h if activation is None else activation(h)


def pooled(x: Any) -> Any:
    """The mean over height and width: (B, C, H, W) -> (B, C, 1, 1)."""
    return F.average_pooling(x, x.shape[2:])


def squeeze_excite(x: Any, channels: int, name: str, activation: Any, gate: Any) -> Any:
    """Scale every channel by a gate in [0, 1] that is computed from the means of all channels.

    Args:
        x: (B, C, H, W).
        channels: Width of the layer between, below C.
        activation, gate: Behind the first and the second layer.
    Source: Hu et al., Squeeze-and-Excitation Networks, arXiv:1709.01507.
    """
    h = activation(PF.convolution(pooled(x), channels, (1, 1), name=f"{name}/squeeze"))
    return x * gate(PF.convolution(h, x.shape[1], (1, 1), name=f"{name}/excite"))


def hard_sigmoid(x: Any) -> Any:
    """relu6(x + 3) / 6; `F.hard_sigmoid` has another slope."""
    return F.relu6(x + 3.0) * (1 / 6)


def hard_swish(x: Any) -> Any:
    """x relu6(x + 3) / 6. Source: Howard et al., arXiv:1905.02244, section 5.2."""
    return x * hard_sigmoid(x)


def divisible(channels: float, divisor: int = 8) -> int:
    """The multiple of `divisor` nearest to `channels`, at least 0.9 of it and never below one."""
    near = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return near + divisor if near < 0.9 * channels else near
