# SPDX-License-Identifier: Apache-2.0
"""Padding, convolution, batch normalization, addition and nonlinearity as one function."""

from __future__ import annotations

from nnl.core.arguments.convert import Spatial
from nnl.core.arrays.spec import ShapeError
from nnl.core.ops.op import OPS, Cost, Sample, op
from nnl.functions.convolution import resolve_window

CATEGORY = "Layer"

__all__ = ["fused_convolution"]

ARGUMENTS = {  # nonlinearity -> names of its arguments
    "identity": (),
    "relu": (),
    "sigmoid": (),
    "tanh": (),
    "leaky_relu": ("alpha",),
    "elu": ("alpha",),
    "relu6": (),
}


def running_statistics(attributes):
    return ("mean", "variance") if attributes.batch_stat else ()


def run(xp, attributes, *inputs):
    """Result of another function's own kernel."""
    ufunc = getattr(attributes, "ufunc", None)
    return getattr(xp, ufunc)(*inputs) if ufunc else attributes.forward(xp, *inputs)


@op("fused_convolution", narrow=True, nnp="FusedConvolution", writes=running_statistics)
class fused_convolution:
    r"""$y = f(\mathrm{bn}(w * \mathrm{pad}(x) + b) + z)$ with a nonlinearity f.

    The steps are those of `pad`, `convolution`, `batch_normalization` and the activation functions.
    Every one but the convolution can be left out.

    Args:
        x: (*batch, C, *S), or (*batch, *S, C) if channel_last.
        weight: (O, C/group, *K), or (O, *K, C/group) if channel_last.
        bias: (O,), optional.
        beta, gamma, mean, variance: (1, O, 1, ...): the channels of the result, 1 in its other
            axes. All four, or none for no normalization. With batch_stat, mean and variance are
            overwritten with the new running statistics; no gradient reaches them.
        z: What is added before the nonlinearity, of the shape of the result; optional.
        base_axis, stride, dilation, group, channel_last: As for `convolution`.
        pad: Pixels added to both ends of each spatial axis, or the two numbers for the two ends of
            the first axis, of the second, and so on.
        decay_rate, eps, batch_stat: As for `batch_normalization`.
        nonlinearity: "identity", "relu", "sigmoid", "tanh", "leaky_relu", "elu" or "relu6".
        nonlinearity_args: (alpha,) for "leaky_relu" and "elu", else nothing.
        pad_mode: "constant", "reflect" or "repeat".
        constant_value: What mode "constant" pads with.
    Returns:
        The shape that `convolution` of the padded x gives.
    Raises:
        ShapeError: Shapes do not fit one of the steps.
        ValueError: Some but not all of beta, gamma, mean and variance are given, the nonlinearity
            or pad_mode is unknown, or nonlinearity_args has the wrong length.
    """

    base_axis: int = 1
    pad: Spatial | None = None
    stride: Spatial | None = None
    dilation: Spatial | None = None
    group: int = 1
    channel_last: bool = False
    decay_rate: float = 0.9
    eps: float = 1e-5
    batch_stat: bool = True
    nonlinearity: str = "relu"
    nonlinearity_args: tuple[float, ...] = ()
    pad_mode: str = "constant"
    constant_value: float = 0.0

    def resolve(
        self, x, weight, bias=None, beta=None, gamma=None, mean=None, variance=None, z=None
    ):
        return resolve_window(self, x)

    def infer(self, x, weight, bias=None, beta=None, gamma=None, mean=None, variance=None, z=None):
        name, given = "fused_convolution", (beta, gamma, mean, variance)
        self.check_nonlinearity()
        n = len(x.shape) - self.base_axis - 1
        if len(self.pad) not in (n, 2 * n):
            raise ShapeError(
                f"{name}: pad {self.pad} has {len(self.pad)} entries, x {x} has {n} spatial axes "
                f"and takes {n} or {2 * n}"
            )
        missing = [
            arg
            for arg, v in zip(("beta", "gamma", "mean", "variance"), given, strict=True)
            if v is None
        ]
        if len(missing) not in (0, 4):
            raise ValueError(
                f"{name}: {' and '.join(missing)} left out, wanted all or none of beta, gamma, "
                "mean and variance"
            )
        try:
            pad, convolution, normalization = self.steps(n)
            padded = x if pad is None else pad.infer(x)
            y = convolution.infer(padded, weight, bias)
            if not missing:
                normalization.infer(y, *given)
        except ValueError as e:
            raise type(e)(f"{name}: {e}") from e
        if z is not None and z.shape != y.shape:
            raise ShapeError(f"{name}: z {z} must have the shape of the result {y}")
        return y

    def check_nonlinearity(self):
        name, arguments = self.nonlinearity, ARGUMENTS.get(self.nonlinearity)
        if arguments is None:
            raise ValueError(
                f"fused_convolution: nonlinearity is {name!r}, wanted one of {sorted(ARGUMENTS)}"
            )
        if len(arguments) != len(self.nonlinearity_args):
            raise ValueError(
                f"fused_convolution: nonlinearity_args is {self.nonlinearity_args}, "
                f"wanted {len(arguments)} values for {name!r}"
            )

    def steps(self, n):
        """Attributes of padding (None if the convolution does it), convolution, normalization."""
        width = self.pad
        if len(width) == n:
            width = tuple(p for p in width for _ in range(2))
        begin, end = width[::2], width[1::2]
        zeros = self.pad_mode == "constant" and self.constant_value == 0
        pad = None
        if not (zeros and begin == end):
            pad = OPS["pad"].attrs(
                pad_width=width + (0, 0) * self.channel_last,
                mode=self.pad_mode,
                constant_value=self.constant_value,
            )
        convolution = OPS["convolution"].attrs(
            base_axis=self.base_axis,
            pad=begin if pad is None else (0,) * n,
            stride=self.stride,
            dilation=self.dilation,
            group=self.group,
            channel_last=self.channel_last,
        )
        normalization = OPS["batch_normalization"].attrs(
            axes=(self.base_axis + n if self.channel_last else self.base_axis,),
            decay_rate=self.decay_rate,
            eps=self.eps,
            batch_stat=self.batch_stat,
        )
        return pad, convolution, normalization

    def activation(self):
        names = ARGUMENTS[self.nonlinearity]
        return dict(zip(names, self.nonlinearity_args, strict=True))

    def forward(self, xp, x, weight, bias, beta, gamma, mean, variance, z):
        pad, convolution, normalization = self.steps(x.ndim - self.base_axis - 1)
        if pad is not None:
            x = run(xp, pad, x)
        y = run(xp, convolution, x, weight, bias)
        if beta is not None:
            y = run(xp, normalization, y, beta, gamma, mean, variance)[0]
        if z is not None:
            y += z
        if self.nonlinearity == "identity":
            return y
        return run(xp, OPS[self.nonlinearity].attrs(**self.activation()), y)

    def decompose(
        self, x, weight, bias=None, beta=None, gamma=None, mean=None, variance=None, z=None
    ):
        """What is differentiated; it leaves the running statistics alone."""
        return self._said(x, weight, bias, beta, gamma, mean, variance, z, not self.batch_stat)

    def portable(
        self, x, weight, bias=None, beta=None, gamma=None, mean=None, variance=None, z=None
    ):
        return self._said(x, weight, bias, beta, gamma, mean, variance, z, True)

    def _said(self, x, weight, bias, beta, gamma, mean, variance, z, running):
        pad, convolution, normalization = self.steps(len(x.shape) - self.base_axis - 1)
        if pad is not None:
            x = OPS["pad"](x, **pad.as_dict())
        y = OPS["convolution"](x, weight, bias, **convolution.as_dict())
        if beta is not None:
            statistics = (mean, variance) if running else (None, None)
            y = OPS["batch_normalization"](y, beta, gamma, *statistics, **normalization.as_dict())
        if z is not None:
            y = OPS["add2"](y, z)
        if self.nonlinearity == "identity":
            return y
        return OPS[self.nonlinearity](y, **self.activation())

    def cost(self, x, weight, bias=None, beta=None, gamma=None, mean=None, variance=None, z=None):
        pad, convolution, normalization = self.steps(len(x.shape) - self.base_axis - 1)
        padded = x if pad is None else pad.infer(x)
        y = convolution.infer(padded, weight, bias)
        first = convolution.cost(padded, weight, bias)
        per_element = 10 if beta is not None else 2
        return Cost(first.flops + per_element * y.size, first.bytes + 4 * y.nbytes)

    def samples(rng):
        x, w, b = rng.normal(size=(2, 4, 5, 6)), rng.normal(size=(6, 4, 3, 3)), rng.normal(size=6)
        shape = (1, 6, 1, 1)
        normal = [rng.normal(size=shape), rng.normal(size=shape)]
        running = [rng.normal(size=shape), rng.uniform(0.5, 2, shape)]
        none = (None,) * 4
        z = rng.normal(size=(2, 6, 3, 4))
        # batch_stat=False where it has no meaning: it would count as writing its inputs
        plain = {"batch_stat": False}
        yield Sample(x, w, b, *none, z, **plain)
        yield Sample(
            x, w, None, *none, None, pad=(1, 1), stride=(2, 1), nonlinearity="tanh", **plain
        )
        grad = (True, True, False, True, True, False, False, True)
        for batch_stat in (True, False):
            yield Sample(
                x, w, None, *normal, *running, z, batch_stat=batch_stat, eps=1e-3, grad=grad,
                nonlinearity="sigmoid",
            )  # fmt: skip
        small = rng.normal(size=(4, 2, 2, 2))
        yield Sample(
            x, small, None, *none, None, pad=(1, 0, 2, 1), pad_mode="reflect", group=2,
            nonlinearity="leaky_relu", nonlinearity_args=(0.2,), **plain,
        )  # fmt: skip
        yield Sample(
            x, small, None, *none, None, pad=(1, 2), constant_value=0.5, group=2,
            nonlinearity="elu", nonlinearity_args=(0.7,), **plain,
        )  # fmt: skip
        yield Sample(
            rng.normal(size=(2, 3, 5)), rng.normal(size=(3, 3, 2)), None, *none, None,
            pad=(1,), pad_mode="repeat", nonlinearity="relu6", **plain,
        )  # fmt: skip
        yield Sample(
            rng.normal(size=(2, 5, 4, 2)), rng.normal(size=(3, 2, 2, 2)), None, *none, None,
            pad=(1, 0, 1, 0), channel_last=True, nonlinearity="identity", **plain,
        )  # fmt: skip
