# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings of positions, and the frequencies that models have for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nnl.core.arguments.annotations import checked
from nnl.core.arrays.spec import ShapeError, check_axis
from nnl.core.ops.op import Cost, Sample, op

CATEGORY = "Layer"

__all__ = ["rotary_embedding", "rotary_frequencies"]


@op("rotary_embedding", integer=("positions",), keep=("frequencies",))
class rotary_embedding:
    r"""Turn pairs of features by angles that grow with the position.

    $$(y_i, y_j) = m\,(x_i \cos a - x_j \sin a,\; x_j \cos a + x_i \sin a), \quad a = p\, f_i$$ for
    position p and the frequency $f_i$, i < R. The pair of i is j = i + R; with `interleaved` the
    pairs are (2 i, 2 i + 1). Features from 2 R on stay as they are.

    Args:
        x: Queries or keys, (B, ..., T, D).
        positions: (T,) or (B, T), integers.
        frequencies: (R,), at most D / 2 of them, float32; `rotary_frequencies` gives them.
        interleaved: Which features make a pair.
        factor: m, of the features that are turned; `rotary_frequencies` gives it.
        axis: The axis of positions; 1 for x (B, T, H, D).
        inverse: Turn back: the gradient.
    Raises:
        ShapeError: positions or frequencies do not fit x.
    Source: Su et al., RoFormer, arXiv:2104.09864.
    Example:
        >>> x, positions = array([[1, 0], [1, 0]]), array([0, 1], int)
        >>> F.rotary_embedding(x, positions, array([np.pi / 2])).d.round(4) + 0.0
        array([[1., 0.],
               [0., 1.]], dtype=float32)
    """

    interleaved: bool = False
    factor: float = 1.0
    axis: int = -2
    inverse: bool = False

    def resolve(self, x, positions, frequencies):
        return {"axis": check_axis("rotary_embedding", self.axis, x)}

    def infer(self, x, positions, frequencies):
        name, n = "rotary_embedding", x.shape[self.axis]
        if self.axis == len(x.shape) - 1:
            raise ShapeError(f"{name}: axis {self.axis} of x {x} is that of features")
        wanted = [(n,), (x.shape[0], n)] if self.axis else [(n,)]
        if positions.shape not in wanted:
            shapes = " or ".join(map(str, wanted))
            raise ShapeError(f"{name}: positions {positions}, wanted the shape {shapes} for x {x}")
        if len(frequencies.shape) != 1 or 2 * frequencies.size > x.shape[-1]:
            raise ShapeError(
                f"{name}: frequencies {frequencies}, wanted at most {x.shape[-1] // 2}, half the "
                f"features of x {x}"
            )
        return x

    def forward(self, xp, x, positions, frequencies):
        r, rank = frequencies.shape[0], x.ndim
        shape = [1] * rank
        shape[self.axis], shape[-1] = positions.shape[-1], r
        if positions.ndim == 2:
            shape[0] = positions.shape[0]
        # rounded to the type of frequencies, in which models have been trained
        angle = positions.astype(frequencies.dtype)[..., None] * frequencies
        cos, sin = (
            (f(angle) * self.factor).astype(x.dtype).reshape(shape) for f in (xp.cos, xp.sin)
        )
        if self.inverse:
            sin = -sin
        y = x.copy()
        if self.interleaved:
            first, second = np.s_[..., 0 : 2 * r : 2], np.s_[..., 1 : 2 * r : 2]
        else:
            first, second = np.s_[..., :r], np.s_[..., r : 2 * r]
        y[first] = x[first] * cos - x[second] * sin
        y[second] = x[second] * cos + x[first] * sin
        return y

    def vjp(self, gy, *, positions, frequencies):
        back = {**self.as_dict(), "inverse": not self.inverse}
        return rotary_embedding(gy, positions, frequencies, **back), None, None

    def cost(self, x, positions, frequencies):
        return Cost(flops=3 * x.size, bytes=2 * x.nbytes)

    def samples(rng):
        x, f = rng.normal(size=(2, 3, 4, 6)), rng.uniform(0.1, 1, 3)
        for interleaved in (False, True):
            yield Sample(x, np.arange(4), f, grad=(True, False, False), interleaved=interleaved)
        more = {"grad": (True, False, False), "factor": 1.5}
        yield Sample(x, rng.integers(0, 9, (2, 4)), f[:2], interleaved=True, inverse=True, **more)
        yield Sample(x, rng.integers(0, 9, (2, 3)), f[:2], axis=1, **more)


class Frequencies(NamedTuple):
    """What `rotary_embedding` takes: frequencies, a float32 array of numpy, and factor."""

    frequencies: np.ndarray[Any, Any]
    factor: float


@checked
def rotary_frequencies(
    width: int,
    base: float = 10000.0,
    scaling: str = "default",
    factor: float = 1.0,
    original_length: int | None = None,
    length: int | None = None,
    attention_factor: float | None = None,
    low: float | None = None,
    high: float | None = None,
    factors: Sequence[float] | None = None,
    truncate: bool = True,
) -> Frequencies:
    r"""Frequencies of `rotary_embedding`: $f_i = b^{-2 i / w}$, changed for longer texts.

    With the factor s, `scaling` says how, in the words of Hugging Face's configurations:

    - "linear": $f_i / s$.
    - "dynamic": for a text of `length` n above `original_length` o the base becomes
      $b\,(s n / o - s + 1)^{w / (w - 2)}$ (NTK).
    - "yarn": $f_i / s$ where less than `low` (1) turns fit into o positions, $f_i$ where more than
      `high` (32) do, and a ramp between. Its factor is $0.1 \ln s + 1$.
    - "llama3": the same idea with a ramp in the number of turns itself, from `low` (1) to `high`
      (4).
    - "longrope": $f_i$ divided by `factors`. Its factor is
      $\sqrt{1 + \ln s / \ln o}$.

    Args:
        width: w, the number of features that are turned: of a head, or the part of it that a
            partial rotary factor leaves. Even.
        base: b, above 1.
        original_length: o, the longest text that the model was trained with before.
        attention_factor: The factor, where it is not the one above.
        truncate: Of "yarn": the ends of the ramp are whole numbers.
    Returns:
        (frequencies, factor), w / 2 numbers of float32 and a float, 1 in the first three cases.
    Raises:
        ValueError: scaling is unknown, or an argument that it needs is missing or out of range.
    Source: Peng et al., YaRN, arXiv:2309.00071; Ding et al., LongRoPE, arXiv:2402.13753.
    Example:
        >>> F.rotary_frequencies(4, scaling="linear", factor=2.0).frequencies
        array([0.5  , 0.005], dtype=float32)
    """
    name = "rotary_frequencies"
    if width < 2 or width % 2:
        raise ValueError(f"{name}: width is {width}, wanted an even number above 0")
    if not base > 1:
        raise ValueError(f"{name}: base is {base}, wanted more than 1")
    if scaling not in SCALINGS:
        raise ValueError(f"{name}: scaling is {scaling!r}, wanted one of {', '.join(SCALINGS)}")
    if not factor > 0:
        raise ValueError(f"{name}: factor is {factor}, wanted more than 0")
    needs = {"dynamic": ("original_length", "length"), "longrope": ("factors",)}
    given = {"original_length": original_length, "length": length, "factors": factors}
    for argument in needs.get(scaling, ("original_length",) * (scaling in ("yarn", "llama3"))):
        if given[argument] is None:
            raise ValueError(f"{name}: {scaling} needs {argument}")
    if original_length is not None and original_length < 2:
        raise ValueError(f"{name}: original_length is {original_length}, wanted at least 2")

    power = np.arange(0, width, 2) / width
    if scaling == "dynamic" and length > original_length and width > 2:
        grown = factor * length / original_length - factor + 1
        base *= grown ** (width / (width - 2))
    plain = f = base**-power
    own = 1.0
    if scaling == "linear":
        f = plain / factor
    elif scaling == "yarn":
        f = yarn(plain, base, factor, original_length, low or 1.0, high or 32.0, truncate)
        own = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    elif scaling == "llama3":
        low, high = low or 1.0, high or 4.0
        turns = original_length * plain / (2 * np.pi)
        ramp = np.clip((turns - low) / (high - low), 0, 1)
        f = plain * (ramp + (1 - ramp) / factor)
    elif scaling == "longrope":
        divisors = np.asarray(factors, np.float64)
        if divisors.shape != power.shape or not (divisors > 0).all():
            raise ValueError(f"{name}: factors, wanted {width // 2} numbers above 0")
        f = plain / divisors
        if factor > 1 and original_length is not None:
            own = math.sqrt(1 + math.log(factor) / math.log(original_length))
    return Frequencies(f.astype(np.float32), own if attention_factor is None else attention_factor)


SCALINGS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")


def yarn(plain, base, factor, length, low, high, truncate):
    """Frequencies between plain and plain / factor."""
    width = 2 * len(plain)

    def index(turns):  # of the frequency that makes so many turns in the length
        return width * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    first, last = index(high), index(low)
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    ramp = np.clip((np.arange(len(plain)) - first) / max(last - first, 0.001), 0, 1)
    return plain * (1 - ramp) + plain / factor * ramp
