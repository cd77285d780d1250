# SPDX-License-Identifier: Apache-2.0
"""Layer, instance, group and tensor normalization, and weight standardization."""

from __future__ import annotations

from collections.abc import Sequence

from nnl.core.arrays.spec import ShapeError, check_axes, check_axis
from nnl.core.ops.op import Cost, Sample
from nnl.functions.reduction import kept_shape, reshape
from nnl.functions.standardize import Normalization, normalization, others, parameters

CATEGORY = "Normalization"

__all__ = [
    "layer_normalization",
    "instance_normalization",
    "group_normalization",
    "tensor_normalization",
    "weight_standardization",
]

OUTPUTS = ("y", "mean", "variance")


class LayerLike(Normalization):
    """Common to those with beta and gamma: the switches that NNabla stores, and samples."""

    outputs = OUTPUTS

    def resolve(self, x, beta=None, gamma=None):
        out = {"no_scale": gamma is None, "no_bias": beta is None}
        if "batch_axis" in self.op.fields:
            out["batch_axis"] = check_axes(self.op.name, self.batch_axis, x)
        if "channel_axis" in self.op.fields:
            axis = out["channel_axis"] = check_axis(self.op.name, self.channel_axis, x)
            if axis in out["batch_axis"]:
                raise ShapeError(
                    f"{self.op.name}: channel_axis {axis} is in batch_axis {out['batch_axis']}"
                )
        return out


@normalization("layer_normalization", nnp="LayerNormalization")
class layer_normalization_op(LayerLike):
    """See layer_normalization."""

    batch_axis: tuple[int, ...] = (0,)
    eps: float = 1e-5
    no_scale: bool = False
    no_bias: bool = False

    def layout(self, x):
        return x.shape, others(x.shape, self.batch_axis)

    def parameter_shape(self, shape):
        return tuple(1 if i in self.batch_axis else n for i, n in enumerate(shape))

    def samples(rng):
        x = rng.normal(size=(2, 3, 4))
        for batch_axis, shape in (((0,), (1, 3, 4)), ((0, 1), (1, 1, 4)), ((-1,), (2, 3, 1))):
            yield Sample(x, *parameters(rng, shape), batch_axis=batch_axis, eps=1e-3)
        yield Sample(x, *parameters(rng, (1, 3, 4)))
        yield Sample(x, None, None)
        yield Sample(x, None, rng.normal(size=(1, 3, 4)))
        yield Sample(x, rng.normal(size=(1, 3, 4)), None)


@normalization("instance_normalization", nnp="InstanceNormalization")
class instance_normalization_op(LayerLike):
    """See instance_normalization."""

    follows_order = True
    channel_axis: int = 1
    batch_axis: tuple[int, ...] = (0,)
    eps: float = 1e-5
    no_scale: bool = False
    no_bias: bool = False

    def layout(self, x):
        return x.shape, others(x.shape, (self.channel_axis, *self.batch_axis))

    def parameter_shape(self, shape):
        return tuple(n if i == self.channel_axis else 1 for i, n in enumerate(shape))

    def check_parameter(self, x, name, p):
        # beta and gamma may also differ from sample to sample
        full = kept_shape(x, self.layout(x)[1])
        if (
            p is None
            or len(p.shape) != len(full)
            or not all(
                n == m or (n == 1 and i in self.batch_axis)
                for i, (n, m) in enumerate(zip(p.shape, full, strict=True))
            )
        ):
            Normalization.check_parameter(self, x, name, p)

    def samples(rng):
        x = rng.normal(size=(2, 3, 4))
        yield Sample(x, *parameters(rng, (1, 3, 1)), eps=1e-3)
        yield Sample(x, *parameters(rng, (2, 3, 1)))
        yield Sample(x, *parameters(rng, (1, 1, 4)), channel_axis=-1)
        yield Sample(x[None], *parameters(rng, (1, 1, 1, 4)), channel_axis=3, batch_axis=(0, 1))
        yield Sample(x, None, None)
        yield Sample(x, None, rng.normal(size=(1, 3, 1)))


@normalization("group_normalization", nnp="GroupNormalization")
class group_normalization_op(LayerLike):
    """See group_normalization."""

    follows_order = True
    num_groups: int
    channel_axis: int = 1
    batch_axis: tuple[int, ...] = (0,)
    eps: float = 1e-5
    no_scale: bool = False
    no_bias: bool = False

    def fold(self, shape):
        c, g = self.channel_axis, self.num_groups
        groups = (g, shape[c] // g) if shape[c] != 1 else (1, 1)
        return (*shape[:c], *groups, *shape[c + 1 :])

    def layout(self, x):
        c, g = self.channel_axis, self.num_groups
        if g < 1 or x.shape[c] % g:
            raise ShapeError(
                f"group_normalization: num_groups is {g}, wanted a divisor of the {x.shape[c]} "
                f"channels of x {x}"
            )
        shape = (*x.shape[:c], g, x.shape[c] // g, *x.shape[c + 1 :])
        kept = [i + (i > c) for i in self.batch_axis]
        return shape, others(shape, (c, *kept))

    def reduced(self, x):
        c = self.channel_axis
        axes = others(x.shape, (c, *self.batch_axis))
        return {"axes": axes, "groups": self.num_groups, "channel_axis": c}

    def by_channel(self, statistic):
        s, c = statistic.shape, self.channel_axis
        return reshape(statistic, (*s[: c + 1], *s[c + 2 :]))

    def parameter_shape(self, shape):
        return tuple(n if i == self.channel_axis else 1 for i, n in enumerate(shape))

    def samples(rng):
        x = rng.normal(size=(2, 4, 3))
        for groups in (1, 2, 4):
            yield Sample(x, *parameters(rng, (1, 4, 1)), num_groups=groups, eps=1e-3)
        yield Sample(
            rng.normal(size=(2, 2, 3, 4)), *parameters(rng, (1, 1, 1, 4)),
            num_groups=2, channel_axis=-1, batch_axis=(0, 1),
        )  # fmt: skip
        yield Sample(x, None, None, num_groups=2)
        yield Sample(x, rng.normal(size=(1, 4, 1)), None, num_groups=2)


@normalization("tensor_normalization", nnp="TensorNormalization")
class tensor_normalization_op(LayerLike):
    """See tensor_normalization."""

    axes: tuple[int, ...] = (1,)
    eps: float = 1e-5
    no_scale: bool = False
    no_bias: bool = False

    def resolve(self, x, beta=None, gamma=None):
        axes = check_axes("tensor_normalization", self.axes, x)
        return {"axes": axes, "no_scale": gamma is None, "no_bias": beta is None}

    def layout(self, x):
        return x.shape, others(x.shape, self.axes)

    def parameter_shape(self, shape):
        return tuple(n if i in self.axes else 1 for i, n in enumerate(shape))

    def samples(rng):
        x = rng.normal(size=(2, 3, 4))
        for axes, shape in (((1,), (1, 3, 1)), ((-1, 0), (2, 1, 4)), ((), (1, 1, 1))):
            yield Sample(x, *parameters(rng, shape), axes=axes, eps=1e-3)
        yield Sample(x, None, None, axes=(1,))


@normalization("weight_standardization", nnp="WeightStandardization")
class weight_standardization_op(Normalization):
    """See weight_standardization."""

    channel_axis: int = 0
    eps: float = 1e-5
    outputs = OUTPUTS

    def resolve(self, x):
        return {"channel_axis": check_axis("weight_standardization", self.channel_axis, x, "w")}

    def layout(self, x):
        return x.shape, others(x.shape, (self.channel_axis,))

    def infer(self, x):
        return Normalization.infer(self, x)

    def forward(self, xp, x):
        return Normalization.forward(self, xp, x, None, None)

    def vjp(self, gy, gmean, gvariance, *, x, mean, variance):
        return Normalization.vjp(
            self, gy, gmean, gvariance, x=x, beta_spec=None, gamma=None, mean=mean,
            variance=variance,
        )[:1]  # fmt: skip

    def cost(self, x):
        return Cost(flops=7 * x.size, bytes=2 * x.nbytes)

    def samples(rng):
        for axis in (0, 1, -1):
            yield Sample(rng.normal(size=(2, 3, 4)), channel_axis=axis)


def layer_normalization(
    x, beta, gamma, batch_axis: int | Sequence[int] = 0, eps: float = 1e-5, output_stat=False
):
    r"""Normalize each sample: over all axes except `batch_axis`.

    $$y = \gamma (x - \mu) / \sqrt{\sigma^2 + \epsilon} + \beta$$ with mean and biased variance.

    Args:
        x: Any shape.
        beta, gamma: The shape of x with 1 in the batch axes; None leaves them out.
        batch_axis: One axis or several.
        eps: Added to the variance, so in squared units of x.
        output_stat: Also return mean and variance, which carry gradients.
    Returns:
        y, or (y, mean, variance).
    Raises:
        ShapeError: beta or gamma has another shape, or an axis is out of range or given twice.
    Source: Ba, Kiros and Hinton, Layer Normalization, arXiv:1607.06450, eq. 4.
    Example:
        >>> zero, one = array([[0, 0]]), array([[1, 1]])
        >>> F.layer_normalization(array([[1, 3], [10, 30]]), zero, one).d
        array([[-1.,  1.],
               [-1.,  1.]], dtype=float32)
    """
    return layer_normalization_op(
        x, beta, gamma, batch_axis=batch_axis, eps=eps, output_stat=output_stat
    )


def instance_normalization(
    x,
    beta,
    gamma,
    channel_axis: int = 1,
    batch_axis: int | Sequence[int] = 0,
    eps: float = 1e-5,
    output_stat: bool = False,
):
    r"""Normalize each channel of each sample: over all axes except these.

    $$y = \gamma\,(x - \mu) / \sqrt{\sigma^2 + \epsilon} + \beta$$ with mean and biased variance of
    the channel.

    Args:
        x: Any shape.
        beta, gamma: The size of the channels in channel_axis, 1 or x's size in the batch axes, 1
            elsewhere; None leaves them out.
        channel_axis: The axis of channels.
        batch_axis: One axis or several.
        eps: Added to the variance, so in squared units of x.
        output_stat: Also return mean and variance, which carry gradients.
    Returns:
        y, or (y, mean, variance).
    Raises:
        ShapeError: beta or gamma has another shape, an axis is out of range or given twice.
    Source: Ulyanov, Vedaldi and Lempitsky, Instance Normalization, arXiv:1607.08022.
    Example:
        >>> x, zero, one = array([[[1, 3], [10, 30]]]), array([[[0], [0]]]), array([[[1], [1]]])
        >>> F.instance_normalization(x, zero, one).d
        array([[[-1.,  1.],
                [-1.,  1.]]], dtype=float32)
    """
    return instance_normalization_op(
        x, beta, gamma, channel_axis=channel_axis, batch_axis=batch_axis, eps=eps,
        output_stat=output_stat,
    )  # fmt: skip


def group_normalization(
    x,
    beta,
    gamma,
    num_groups: int,
    channel_axis: int = 1,
    batch_axis: int | Sequence[int] = 0,
    eps: float = 1e-5,
    output_stat: bool = False,
):
    r"""Normalize each group of neighbouring channels of each sample.

    $$y = \gamma\,(x - \mu) / \sqrt{\sigma^2 + \epsilon} + \beta$$ with mean and biased variance of
    the group that x is in.

    Args:
        x: Any shape.
        beta, gamma: The size of the channels in channel_axis, 1 elsewhere; None leaves them out.
        num_groups: Number of groups, a divisor of the number of channels.
        channel_axis: The axis of channels.
        batch_axis: One axis or several.
        eps: Added to the variance, so in squared units of x.
        output_stat: Also return mean and variance, which carry gradients. They have one more axis
            than x: groups, then 1, in place of the channels.
    Returns:
        y, or (y, mean, variance).
    Raises:
        ShapeError: num_groups does not divide the channels, beta or gamma has another shape, or
            an axis is out of range or given twice.
    Source: Wu and He, Group Normalization, arXiv:1803.08494.
    Example:
        >>> x = array([[[1], [3], [10], [30]]])
        >>> zero, one = array(np.zeros((1, 4, 1))), array(np.ones((1, 4, 1)))
        >>> F.group_normalization(x, zero, one, num_groups=2).d.ravel()
        array([-1.,  1., -1.,  1.], dtype=float32)
    """
    return group_normalization_op(
        x, beta, gamma, num_groups=num_groups, channel_axis=channel_axis, batch_axis=batch_axis,
        eps=eps, output_stat=output_stat,
    )  # fmt: skip


def tensor_normalization(
    x, axes: int | Sequence[int], beta=None, gamma=None, eps: float = 1e-5, output_stat=False
):
    r"""Normalize over all axes except `axes`: batch_normalization without running statistics.

    $$y = \gamma\,(x - \mu) / \sqrt{\sigma^2 + \epsilon} + \beta$$

    Args:
        x: Any shape.
        axes: One axis or several; none normalizes the whole array.
        beta, gamma: The shape of x with 1 in all axes except `axes`; None leaves them out.
        eps: Added to the variance, so in squared units of x.
        output_stat: Also return mean and variance, which carry gradients.
    Returns:
        y, or (y, mean, variance).
    Raises:
        ShapeError: beta or gamma has another shape, or an axis is out of range or given twice.
    Example:
        >>> F.tensor_normalization(array([[1, 3], [10, 30]]), axes=0).d  # over the others: axis 1
        array([[-1.,  1.],
               [-1.,  1.]], dtype=float32)
    """
    return tensor_normalization_op(x, beta, gamma, axes=axes, eps=eps, output_stat=output_stat)


def weight_standardization(w, channel_axis: int = 0, eps: float = 1e-5, output_stat=False):
    r"""Give the weights of each output channel mean 0 and variance 1.

    $$y_o = (w_o - \mu_o) / \sqrt{\sigma_o^2 + \epsilon}$$

    Args:
        w: Weights of an affine map or a convolution.
        channel_axis: The axis of output channels.
        eps: Added to the variance, so in squared units of w.
        output_stat: Also return mean and variance, which carry gradients.
    Returns:
        y, or (y, mean, variance).
    Raises:
        ShapeError: channel_axis is out of range.
    Source: Qiao et al., Weight Standardization, arXiv:1903.10520.
    Example:
        >>> F.weight_standardization(array([[1, 3], [10, 30]])).d
        array([[-1.,  1.],
               [-1.,  1.]], dtype=float32)
    """
    return weight_standardization_op(w, channel_axis=channel_axis, eps=eps, output_stat=output_stat)
