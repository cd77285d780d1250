# SPDX-License-Identifier: Apache-2.0
"""Layers that hold their parameters as attributes: NNabla's experimental parametric_function_class.

nnl.Module is the newer way.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.nnp.parameter_files import load_parameters, save_parameters
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import pop_parameter
from nnl.parametric_functions.initializer import (
    ConstantInitializer,
    UniformInitializer,
    calc_uniform_lim_glorot,
)

Initializer = Callable[[Any], Any]


class Module:
    """A layer, or several of them as attributes; the Variables among its attributes are trained."""

    def get_modules(
        self, memo: set[Any] | None = None, prefix: str = ""
    ) -> Iterator[tuple[str, Module]]:
        """(path, module) of this module and those below, each once."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        memo.add(self)
        yield prefix, self
        for name, part in vars(self).items():
            if isinstance(part, Module):
                yield from part.get_modules(memo, f"{prefix}/{name}" if prefix else name)

    def get_parameters(self, grad_only: bool = True) -> OrderedDict[str, Variable]:
        """Parameters by path.

        Args:
            grad_only: Leave out those with need_grad=False.
        """
        return OrderedDict(
            (f"{prefix}/{name}", v)
            for prefix, module in self.get_modules()
            for name, v in vars(module).items()
            if isinstance(v, Variable) and (v.need_grad or not grad_only)
        )

    def save_parameters(self, path: Any, grad_only: bool = False) -> None:
        """Write the parameters to a file."""
        save_parameters(path, self.get_parameters(grad_only))

    def load_parameters(self, path: Any) -> None:
        """Read the parameters from a file.

        Raises:
            ValueError: The file lacks one of them.
        """
        load_parameters(path)
        for name, v in self.get_parameters(grad_only=False).items():
            loaded = pop_parameter(name)
            if loaded is None:
                raise ValueError(f"load_parameters: {path} has no parameter {name!r}")
            v.d = loaded.d


def _parameter(init: Initializer, shape: Any, trained: bool) -> Variable:
    return Variable.from_numpy_array(np.asarray(init(shape), np.float32), need_grad=trained)


class _Weighted(Module):
    """What affine layers, convolutions and deconvolutions share: W and b."""

    def _make(
        self, w_shape: Any, b_size: int, fans: Any, w_init: Any, b_init: Any, fix: bool, rng: Any,
        with_bias: bool,
    ) -> None:  # fmt: skip
        if w_init is None:
            w_init = UniformInitializer(calc_uniform_lim_glorot(*fans), rng=rng)
        self.W = _parameter(w_init, w_shape, not fix)
        self.b = None
        if with_bias:
            self.b = _parameter(b_init or ConstantInitializer(), (b_size,), not fix)


class Affine(_Weighted):
    """See nnl.functions.affine. n_outmaps is an int, or several, which are multiplied."""

    def __init__(
        self,
        n_inmaps: int,
        n_outmaps: int | Sequence[int],
        base_axis: int = 1,
        w_init: Initializer | None = None,
        b_init: Initializer | None = None,
        fix_parameters: bool = False,
        rng: Any = None,
        with_bias: bool = True,
    ) -> None:
        n = int(np.prod(n_outmaps))
        self._make((n_inmaps, n), n, (n_inmaps, n), w_init, b_init, fix_parameters, rng, with_bias)
        self.base_axis = base_axis

    def __call__(self, inp: Variable) -> Any:
        return F.affine(inp, self.W, self.b, self.base_axis)


class Convolution(_Weighted):
    """See nnl.functions.convolution."""

    function: Any = staticmethod(F.convolution)

    def __init__(
        self,
        inmaps: int,
        outmaps: int,
        kernel: Sequence[int],
        pad: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        dilation: Sequence[int] | None = None,
        group: int = 1,
        w_init: Initializer | None = None,
        b_init: Initializer | None = None,
        base_axis: int = 1,
        fix_parameters: bool = False,
        rng: Any = None,
        with_bias: bool = True,
    ) -> None:
        kernel = tuple(kernel)
        fans = (inmaps, outmaps, kernel)
        shape = self.weight_shape(inmaps, outmaps, group) + kernel
        self._make(shape, outmaps, fans, w_init, b_init, fix_parameters, rng, with_bias)
        self.base_axis, self.group = base_axis, group
        self.pad, self.stride, self.dilation = pad, stride, dilation

    @staticmethod
    def weight_shape(inmaps: int, outmaps: int, group: int) -> tuple[int, ...]:
        """The first two sizes of the weight."""
        return (outmaps, inmaps // group)

    def __call__(self, inp: Variable) -> Any:
        return self.function(
            inp, self.W, self.b, self.base_axis, self.pad, self.stride, self.dilation, self.group
        )


class Deconvolution(Convolution):
    """See nnl.functions.deconvolution."""

    function = staticmethod(F.deconvolution)

    @staticmethod
    def weight_shape(inmaps: int, outmaps: int, group: int) -> tuple[int, ...]:
        return (inmaps, outmaps // group)


class Embed(Module):
    """See nnl.functions.embed."""

    def __init__(
        self,
        n_inputs: int,
        n_features: int,
        w_init: Initializer | None = None,
        fix_parameters: bool = False,
    ) -> None:
        if w_init is None:
            w_init = UniformInitializer((-np.sqrt(3.0), np.sqrt(3.0)))
        self.W = _parameter(w_init, (n_inputs, n_features), not fix_parameters)

    def __call__(self, inp: Variable) -> Any:
        return F.embed(inp, self.W)


class BatchNormalization(Module):
    """See nnl.functions.batch_normalization. `test=True` in a call takes the running statistics."""

    def __init__(
        self,
        n_features: int,
        n_dims: int,
        axes: Sequence[int] = (1,),
        decay_rate: float = 0.9,
        eps: float = 1e-5,
        batch_stat: bool = True,
        output_stat: bool = False,
        fix_parameters: bool = False,
        param_init: dict[str, Initializer] | None = None,
    ) -> None:
        (axis,) = axes
        shape = [n_features if i == axis else 1 for i in range(n_dims)]
        init = {name: ConstantInitializer(name in ("gamma", "var")) for name in
                ("beta", "gamma", "mean", "var")}  # fmt: skip
        init.update(param_init or {})
        self.beta = _parameter(init["beta"], shape, not fix_parameters)
        self.gamma = _parameter(init["gamma"], shape, not fix_parameters)
        self.mean = _parameter(init["mean"], shape, False)
        self.var = _parameter(init["var"], shape, False)
        self.axes, self.decay_rate, self.eps = axes, decay_rate, eps
        self.output_stat = output_stat

    def __call__(self, inp: Variable, test: bool = False) -> Any:
        return F.batch_normalization(
            inp, self.beta, self.gamma, self.mean, self.var, self.axes, self.decay_rate, self.eps,
            not test, self.output_stat,
        )  # fmt: skip


class BatchNorm1d(BatchNormalization):
    """For inputs with 3 axes."""

    n_dims = 3

    def __init__(self, n_features: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(n_features, self.n_dims, *args, **kwargs)


class BatchNorm2d(BatchNorm1d):
    """For inputs with 4 axes."""

    n_dims = 4


class BatchNorm3d(BatchNorm1d):
    """For inputs with 5 axes."""

    n_dims = 5


Linear = Affine
Conv1d = Conv2d = Conv3d = ConvNd = Convolution
Deconv1d = Deconv2d = Deconv3d = DeconvNd = Deconvolution
