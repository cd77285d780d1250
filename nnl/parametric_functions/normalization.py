# SPDX-License-Identifier: Apache-2.0
"""Normalisations whose scale, bias and running statistics are parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnl import functions as F
from nnl.core.arguments.annotations import Input
from nnl.core.arrays.spec import check_axes, check_axis
from nnl.core.parameters.parameter import get_parameter_or_create
from nnl.parametric_functions.api import parametric_function_api
from nnl.parametric_functions.initializer import (
    ONE,
    ZERO,
    NormalInitializer,
    WeightNormalizationScaleInitializer,
)

__all__ = [
    "batch_normalization",
    "fused_batch_normalization",
    "sync_batch_normalization",
    "mean_subtraction",
    "layer_normalization",
    "instance_normalization",
    "group_normalization",
    "weight_normalization",
    "spectral_norm",
]

Init = dict[str, Any] | None

_STATISTICS = [
    ("beta", "Bias", "sizes of inp along axes, else 1", True),
    ("gamma", "Scale", "that of beta", True),
    ("mean", "Running mean", "that of beta", False),
    ("var", "Running variance", "that of beta", False),
]
_AFFINE = [
    ("beta", "Bias", "sizes of inp along the axes that are not shared, else 1", True),
    ("gamma", "Scale", "that of beta", True),
]
_START = {"beta": ZERO, "gamma": ONE, "mean": ZERO, "var": ONE}


def _parameter(function: str, name: str, shape: Sequence[int], inits: Init, need: bool) -> Any:
    """beta or gamma (need: of this call), or a running statistic, which never has a gradient."""
    unknown = sorted(set(inits or ()) - set(_START))
    if unknown:
        known = list(_START)
        raise ValueError(
            f"{function}: param_init has the key {unknown[0]!r}, wanted some of {known}"
        )
    init = (inits or {}).get(name)
    init = _START[name] if init is None else init
    learned = name in ("beta", "gamma")
    return get_parameter_or_create(name, tuple(shape), init, learned, learned and need)


def _scale_and_bias(
    function: str, shape: Sequence[int], inits: Init, fix: bool, no_scale: bool, no_bias: bool
) -> tuple[Any, Any]:
    beta = None if no_bias else _parameter(function, "beta", shape, inits, not fix)
    gamma = None if no_scale else _parameter(function, "gamma", shape, inits, not fix)
    return beta, gamma


def _batch_parameters(
    function: str, inp: Any, axes: Any, inits: Init, fix: bool, no_scale: bool, no_bias: bool
) -> tuple[Any, ...]:
    """beta, gamma, mean, var with the sizes of inp along axes."""
    kept = check_axes(function, (axes,) if isinstance(axes, int) else tuple(axes), inp.spec, "inp")
    shape = [n if i in kept else 1 for i, n in enumerate(inp.shape)]
    beta, gamma = _scale_and_bias(function, shape, inits, fix, no_scale, no_bias)
    mean = _parameter(function, "mean", shape, inits, False)
    var = _parameter(function, "var", shape, inits, False)
    return beta, gamma, mean, var


@parametric_function_api("bn", _STATISTICS)
def batch_normalization(
    inp: Input,
    axes: Sequence[int] = (1,),
    decay_rate: float = 0.9,
    eps: float = 1e-5,
    batch_stat: bool = True,
    output_stat: bool = False,
    fix_parameters: bool = False,
    param_init: Init = None,
    no_scale: bool = False,
    no_bias: bool = False,
) -> Any:
    r"""Normalise with the statistics of the batch, or with the running ones.

    $$y = \gamma\,(x - \mu) / \sqrt{\sigma^2 + \epsilon} + \beta$$ with mean and variance for each
    index along `axes`.

    Args:
        inp: Any shape.
        axes: Axes with statistics of their own for each index, usually that of the channels.
        decay_rate: Weight of the old running statistics in an update.
        eps: Added to the variance.
        batch_stat: Normalise with the batch and update the running statistics (training), else
            normalise with the running ones.
        output_stat: Return (y, mean, variance of the batch).
        fix_parameters: Compute no gradients for beta and gamma in this call. The running
            statistics are updated all the same: use batch_stat=False to keep them.
        param_init: Initializers or arrays by parameter name: "beta", "gamma", "mean", "var".
        no_scale, no_bias: Leave gamma or beta out.
    Raises:
        ShapeError: An axis is out of range. ValueError: param_init has another key.
    Source: Ioffe and Szegedy, Batch Normalization, arXiv:1502.03167.
    Example:
        >>> x = array(rng.normal(5, 2, (8, 4, 3)))
        >>> abs(float(F.mean(PF.batch_normalization(x, name="ex")).d)) < 1e-4
        True
    """
    parameters = _batch_parameters(
        "batch_normalization", inp, axes, param_init, fix_parameters, no_scale, no_bias
    )
    return F.batch_normalization(
        inp,
        *parameters,
        axes=axes,
        decay_rate=decay_rate,
        eps=eps,
        batch_stat=batch_stat,
        output_stat=output_stat,
    )


@parametric_function_api("bn", _STATISTICS)
def fused_batch_normalization(
    inp: Input,
    z: Input | None = None,
    axes: Sequence[int] = (1,),
    decay_rate: float = 0.9,
    eps: float = 1e-5,
    batch_stat: bool = True,
    nonlinearity: str = "relu",
    output_stat: bool = False,
    fix_parameters: bool = False,
    param_init: Init = None,
    no_scale: bool = False,
    no_bias: bool = False,
) -> Any:
    r"""Batch normalisation, plus z, through a nonlinearity f: $y = f(\mathrm{bn}(x) + z)$.

    Args:
        z: Added to the normalised values before the nonlinearity, or left out.
        nonlinearity: Its name.

    The other arguments are those of `batch_normalization`.

    Source: Ioffe and Szegedy, Batch Normalization, arXiv:1502.03167 (the normalisation).
    Example:
        >>> x = array(rng.normal(5, 2, (8, 4, 3)))
        >>> y = PF.fused_batch_normalization(x, name="ex")
        >>> float(y.d.min())  # relu is part of it
        0.0
    """
    parameters = _batch_parameters(
        "fused_batch_normalization", inp, axes, param_init, fix_parameters, no_scale, no_bias
    )
    return F.fused_batch_normalization(
        inp,
        *parameters,
        z=z,
        axes=axes,
        decay_rate=decay_rate,
        eps=eps,
        batch_stat=batch_stat,
        nonlinearity=nonlinearity,
        output_stat=output_stat,
    )


@parametric_function_api("bn", _STATISTICS)
def sync_batch_normalization(
    inp: Input,
    comm: Any,
    group: str = "world",
    axes: Sequence[int] = (1,),
    decay_rate: float = 0.9,
    eps: float = 1e-5,
    batch_stat: bool = True,
    output_stat: bool = False,
    fix_parameters: bool = False,
    param_init: Init = None,
    no_scale: bool = False,
    no_bias: bool = False,
) -> Any:
    r"""Batch normalisation with the statistics of the batches of all processes.

    $$y = \gamma\,(x - \mu) / \sqrt{\sigma^2 + \epsilon} + \beta$$ with mean and variance over the
    batches of all processes.

    Args:
        comm: Communicator between the processes.
        group: Name of the communicator's group.

    The other arguments are those of `batch_normalization`.

    Source: Peng et al., MegDet, arXiv:1711.07240 (there between GPUs).
    Example:
        >>> comm = C.MultiProcessDataParallelCommunicator(nn.get_current_context())
        >>> comm.init()
        >>> PF.sync_batch_normalization(array(rng.normal(size=(8, 4))), comm, name="ranks").shape
        (8, 4)
    """
    parameters = _batch_parameters(
        "sync_batch_normalization", inp, axes, param_init, fix_parameters, no_scale, no_bias
    )
    return F.sync_batch_normalization(
        inp,
        *parameters,
        comm,
        group=group,
        axes=axes,
        decay_rate=decay_rate,
        eps=eps,
        batch_stat=batch_stat,
        output_stat=output_stat,
    )


@parametric_function_api(
    "mean_subtraction",
    [
        ("mean", "Running mean", "inp.shape[base_axis:]", False),
        ("t", "Number of updates", "(1,)", False),
    ],
)
def mean_subtraction(
    inp: Input, base_axis: int = 1, update_running_mean: bool = True, fix_parameters: bool = False
) -> Any:
    r"""Subtract the mean over all batches seen so far: $y = x - \mu$.

    For batch number t with the mean m, $\mu$ becomes $\mu + (m - \mu) / t$ first.

    Args:
        inp: (samples..., elements...).
        base_axis: Axes from here on have means of their own.
        update_running_mean: Whether this batch counts.
        fix_parameters: Ignored: the parameters never have gradients.
    Example:
        >>> x = array(rng.normal(5, 2, (8, 4, 3)))
        >>> abs(float(F.mean(PF.mean_subtraction(x, name="ex")).d)) < 1e-4
        True
    """
    mean = get_parameter_or_create("mean", inp.shape[base_axis:], ZERO, False)
    t = get_parameter_or_create("t", (1,), ZERO, False)
    return F.mean_subtraction(
        inp, mean, t, base_axis=base_axis, update_running_mean=update_running_mean
    )


@parametric_function_api("layer_normalization", _AFFINE)
def layer_normalization(
    inp: Input,
    batch_axis: int | Sequence[int] = 0,
    eps: float = 1e-5,
    output_stat: bool = False,
    fix_parameters: bool = False,
    param_init: Init = None,
    no_scale: bool = False,
    no_bias: bool = False,
) -> Any:
    r"""Normalise each sample over all its elements.

    $$y = \gamma\,(x - \mu) / \sqrt{\sigma^2 + \epsilon} + \beta$$ with mean and biased variance of
    the sample.

    Args:
        inp: Any shape.
        batch_axis: Axes of the samples; beta and gamma have size 1 there.
        eps: Added to the variance.
        output_stat: Return (y, mean, variance).
        fix_parameters: Compute no gradients for beta and gamma in this call.
        param_init: Initializers or arrays by parameter name: "beta", "gamma".
        no_scale, no_bias: Leave gamma or beta out.
    Source: Ba, Kiros and Hinton, Layer Normalization, arXiv:1607.06450.
    Example:
        >>> x = array(rng.normal(5, 2, (8, 4, 3)))
        >>> abs(float(F.mean(PF.layer_normalization(x, name="ex")).d)) < 1e-4
        True
    """
    name = "layer_normalization"
    axes = (batch_axis,) if isinstance(batch_axis, int) else tuple(batch_axis)
    samples = check_axes(name, axes, inp.spec, "inp")
    shape = [1 if i in samples else n for i, n in enumerate(inp.shape)]
    beta, gamma = _scale_and_bias(name, shape, param_init, fix_parameters, no_scale, no_bias)
    return F.layer_normalization(
        inp, beta, gamma, batch_axis=batch_axis, eps=eps, output_stat=output_stat
    )


def _channel_shape(function: str, inp: Any, channel_axis: int) -> list[int]:
    channel = check_axis(function, channel_axis, inp.spec, "inp")
    return [n if i == channel else 1 for i, n in enumerate(inp.shape)]


@parametric_function_api("instance_normalization", _AFFINE)
def instance_normalization(
    inp: Input,
    channel_axis: int = 1,
    batch_axis: int | Sequence[int] = 0,
    eps: float = 1e-5,
    output_stat: bool = False,
    fix_parameters: bool = False,
    param_init: Init = None,
    no_scale: bool = False,
    no_bias: bool = False,
) -> Any:
    r"""Normalise each channel of each sample.

    $$y = \gamma\,(x - \mu) / \sqrt{\sigma^2 + \epsilon} + \beta$$ with mean and biased variance of
    the channel.

    Args:
        channel_axis: Axis of the channels; beta and gamma have one element for each.

    The other arguments are those of `layer_normalization`.
    Source: Ulyanov, Vedaldi and Lempitsky, Instance Normalization, arXiv:1607.08022.
    Example:
        >>> x = array(rng.normal(5, 2, (8, 4, 3)))
        >>> abs(float(F.mean(PF.instance_normalization(x, name="ex")).d)) < 1e-4
        True
    """
    name = "instance_normalization"
    shape = _channel_shape(name, inp, channel_axis)
    beta, gamma = _scale_and_bias(name, shape, param_init, fix_parameters, no_scale, no_bias)
    return F.instance_normalization(
        inp,
        beta,
        gamma,
        channel_axis=channel_axis,
        batch_axis=batch_axis,
        eps=eps,
        output_stat=output_stat,
    )


@parametric_function_api("group_normalization", _AFFINE)
def group_normalization(
    inp: Input,
    num_groups: int,
    channel_axis: int = 1,
    batch_axis: int | Sequence[int] = 0,
    eps: float = 1e-5,
    output_stat: bool = False,
    fix_parameters: bool = False,
    param_init: Init = None,
    no_scale: bool = False,
    no_bias: bool = False,
) -> Any:
    r"""Normalise each group of channels of each sample.

    $$y = \gamma\,(x - \mu) / \sqrt{\sigma^2 + \epsilon} + \beta$$ with mean and biased variance of
    the group.

    Args:
        num_groups: Number of groups; divides the number of channels.
        channel_axis: Axis of the channels; beta and gamma have one element for each.

    The other arguments are those of `layer_normalization`.
    Source: Wu and He, Group Normalization, arXiv:1803.08494.
    Example:
        >>> x = array(rng.normal(5, 2, (8, 4, 3)))
        >>> abs(float(F.mean(PF.group_normalization(x, num_groups=2, name="ex")).d)) < 1e-4
        True
    """
    name = "group_normalization"
    shape = _channel_shape(name, inp, channel_axis)
    beta, gamma = _scale_and_bias(name, shape, param_init, fix_parameters, no_scale, no_bias)
    return F.group_normalization(
        inp,
        beta,
        gamma,
        num_groups=num_groups,
        channel_axis=channel_axis,
        batch_axis=batch_axis,
        eps=eps,
        output_stat=output_stat,
    )


@parametric_function_api("wn", [("g", "Norms", "(w.shape[dim],)", True)])
def weight_normalization(
    w: Input, dim: int = 0, eps: float = 1e-12, g_init: Any = None, fix_parameters: bool = False
) -> Any:
    r"""A weight split into direction and norm: $y = g\, w / \sqrt{\sum w^2 + \epsilon}$.

    Give it to the apply_w argument of a layer.

    Args:
        w: Weight.
        dim: Axis that indexes the slices which have norms of their own.
        eps: Added to the sum of squares.
        g_init: Initializer or array; the norms of w, so that nothing changes at first, if left out.
        fix_parameters: Compute no gradient for g in this call.
    Source: Salimans and Kingma, arXiv:1602.07868.
    Example:
        >>> PF.weight_normalization(array([[3, 4], [6, 8]]), name="ex").d  # at first as it was
        array([[3., 4.],
               [6., 8.]], dtype=float32)
    """
    axis = check_axis("weight_normalization", dim, w.spec, "w")
    init = WeightNormalizationScaleInitializer(w, dim, eps) if g_init is None else g_init
    g = get_parameter_or_create("g", (w.shape[axis],), init, True, not fix_parameters)
    return F.weight_normalization(w, g, dim=dim, eps=eps)


@parametric_function_api("spectral-norm", [("u", "Singular vector", "(w.shape[dim],)", False)])
def spectral_norm(
    w: Input,
    dim: int = 0,
    itr: int = 1,
    eps: float = 1e-12,
    test: bool = False,
    u_init: Any = None,
    fix_parameters: bool = True,
) -> Any:
    r"""A weight divided by its largest singular value, which a power iteration tracks.

    $$y = w / \sigma, \quad \sigma = u^T w\, v$$ where each iteration makes
    $v = w^T u / |w^T u|$, then $u = w v / |w v|$.

    Give it to the apply_w argument of a layer.

    Args:
        w: Weight, seen as a matrix of w.shape[dim] rows.
        dim: Axis of the rows.
        itr: Number of iterations for each forward.
        eps: Added to norms that are divided by.
        test: Keep u as it is.
        u_init: Initializer or array; standard normal numbers if left out.
        fix_parameters: Ignored: u never has a gradient.
    Source: Miyato et al., arXiv:1802.05957.
    Example:
        >>> PF.spectral_norm(array(rng.normal(size=(3, 4))), itr=3, name="ex").shape
        (3, 4)
    """
    axis = check_axis("spectral_norm", dim, w.spec, "w")
    init = NormalInitializer() if u_init is None else u_init
    u = get_parameter_or_create("u", (w.shape[axis],), init, False)
    return F.spectral_norm(w, u, dim=dim, itr=itr, eps=eps, test=test)
