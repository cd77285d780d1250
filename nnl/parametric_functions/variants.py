# SPDX-License-Identifier: Apache-2.0
"""Affine maps and convolutions that use something else than W: both are made of one definition,
which takes a `Layer` and arguments of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from nnl import functions as F
from nnl.core.arguments.annotations import Input
from nnl.core.parameters.parameter import get_parameter_or_create
from nnl.parametric_functions.affine import _sizes
from nnl.parametric_functions.api import parametric_function_api
from nnl.parametric_functions.convolution import _divided, _inmaps
from nnl.parametric_functions.initializer import ZERO, glorot

Rng = np.random.RandomState | None


@dataclass
class Layer:
    """What a call wants.

    Attributes:
        kind: A key of KINDS.
        name: Of the function, which messages name.
        x: The input.
        shape, outmaps: Shapes of W and of b.
        initial: Initializers of W and of b.
        glorot: That of W where none is given.
        with_bias: Whether there is a b.
        learns: Whether W and b get gradients.
        window: Further arguments of the function that uses them.
    """

    kind: str
    name: str
    x: Any
    shape: tuple[int, ...]
    outmaps: tuple[int, ...]
    initial: tuple[Any, Any]
    glorot: Any
    with_bias: bool
    learns: bool
    window: dict[str, Any]

    def w(self) -> Any:
        """The parameter W."""
        return get_parameter_or_create("W", self.shape, self.initial[0], True, self.learns)

    def b(self) -> Any:
        """The parameter b; None without bias."""
        if not self.with_bias:
            return None
        return get_parameter_or_create("b", self.outmaps, self.initial[1], True, self.learns)

    def result(self, function: str, *weights: Any, **more: Any) -> Any:
        """What a function of nnl.functions makes of x and weights."""
        return getattr(F, function)(self.x, *weights, **self.window, **more)


def _initial(w_init: Any, b_init: Any, usual: Any) -> tuple[Any, Any]:
    return usual if w_init is None else w_init, ZERO if b_init is None else b_init


def _affine(
    name: str,
    inp: Input,
    n_outmaps: int | Sequence[int],
    base_axis: int = 1,
    w_init: Any = None,
    b_init: Any = None,
    fix_parameters: bool = False,
    rng: Rng = None,
    with_bias: bool = True,
) -> Layer:
    inmaps, outmaps, base_axis = _sizes(inp.shape, n_outmaps, base_axis, name)  # type: ignore[arg-type]
    usual = glorot(inmaps, prod(outmaps), rng=rng)
    initial = _initial(w_init, b_init, usual)
    shape, window = (inmaps, *outmaps), {"base_axis": base_axis}
    fix = fix_parameters
    return Layer("affine", name, inp, shape, outmaps, initial, usual, with_bias, not fix, window)


def _convolution(
    name: str,
    inp: Input,
    outmaps: int,
    kernel: Sequence[int],
    pad: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    group: int = 1,
    channel_last: bool = False,
    w_init: Any = None,
    b_init: Any = None,
    base_axis: int = 1,
    fix_parameters: bool = False,
    rng: Rng = None,
    with_bias: bool = True,
) -> Layer:
    inmaps = _inmaps(name, inp, kernel, base_axis, channel_last)
    channels = _divided(name, "input channels", inmaps, "group", group)
    shape = (outmaps, *kernel, channels) if channel_last else (outmaps, channels, *kernel)
    usual = glorot(inmaps, outmaps, kernel, rng)
    initial = _initial(w_init, b_init, usual)
    window = {"base_axis": base_axis, "pad": pad, "stride": stride, "dilation": dilation,
              "group": group}  # fmt: skip
    if channel_last:
        window["channel_last"] = True
    fix = fix_parameters
    return Layer(
        "convolution", name, inp, shape, (outmaps,), initial, usual, with_bias, not fix, window
    )


# Of each kind: what makes the Layer, the shapes of W and b, the formula, the example.
KINDS: dict[str, tuple[Callable[..., Layer], str, str, str, str]] = {
    "affine": (
        _affine,
        "(elements of a sample, *n_outmaps)",
        "n_outmaps",
        r"x\,W + b",
        ">>> x = array(np.ones((2, 4)))\n>>> PF.{name}(x, 3, name='ex').shape\n(2, 3)",
    ),
    "convolution": (
        _convolution,
        "(outmaps, channels / group, *kernel)",
        "(outmaps,)",
        "W * x + b",
        ">>> x = array(np.ones((1, 2, 6, 6)))\n"
        ">>> PF.{name}(x, 5, (3, 3), name='ex').shape\n(1, 5, 4, 4)",
    ),
}


def variant(
    kind: str,
    name: str,
    scope: str,
    kept: Sequence[tuple[str, str, str]],
    definition: Callable[..., Any],
    w: str,
    b: str = "b",
    before: bool = False,
    channel_last: bool = False,
) -> Any:
    """The layer `name` of a kind.

    Args:
        kind: A key of KINDS.
        scope: Of its parameters.
        kept: Parameters without gradient besides W and b: name, what it is, and of which of the two
            it has the shape.
        definition: Makes the result of a Layer and of arguments of its own. Its docstring is a
            summary, an explanation of the formula, then arguments and source.
        w, b: What stands for W and b in the formula.
        before: Whether its own arguments are before w_init, and initializers behind it; else last.
        channel_last: Whether the layer has this argument.
    """
    make, w_shape, b_shape, formula, example = KINDS[kind]
    w_shape += ", channels last if channel_last" * channel_last
    own = [*inspect.signature(definition).parameters.values()][1:]
    initializers = [p for p in own if before and p.name.endswith("_init")]
    others = [p for p in own if p not in initializers]
    ordered = []
    for p in [*inspect.signature(make).parameters.values()][1:]:
        if p.name == "channel_last" and not channel_last:
            continue
        ordered += others if before and p.name == "w_init" else []
        ordered.append(p)
        ordered += initializers if p.name == "w_init" else []
    signature = inspect.Signature([*ordered, *([] if before else others)], return_annotation="Any")
    names = {p.name for p in own}

    def layer(*args: Any, **kw: Any) -> Any:
        try:
            given = signature.bind(*args, **kw).arguments
        except TypeError as error:
            raise TypeError(f"{name}() {error}") from None
        mine = {k: given.pop(k) for k in list(given) if k in names}
        return definition(make(name, **given), **mine)

    layer.__name__ = layer.__qualname__ = name
    layer.__module__ = definition.__module__
    layer.__signature__ = signature  # type: ignore[attr-defined]
    summary, where, rest = inspect.cleandoc(definition.__doc__ or "").split("\n\n", 2)
    before_source, source, after = rest.partition("Source:")
    formula = formula.replace("W", w).replace("+ b", f"+ {b}")
    lines = example.format(name=name).replace("'", '"').replace("\n", "\n    ")
    layer.__doc__ = (
        f"{kind} {summary}\n\n$$y = {formula}$$ with {where}\n\n"
        f"{before_source}The other arguments are those of `{kind}`.\n\n"
        f"{source}{after}\nExample:\n    {lines}"
    ).replace("{name}", name)
    shapes = {"W": w_shape, "b": b_shape}
    described = [("W", "Weight", w_shape, True)]
    described += [(n, what, shapes[of], False) for n, what, of in kept]
    described.append(("b", "Bias", b_shape, True))
    return parametric_function_api(scope, described)(layer)
