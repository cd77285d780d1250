# SPDX-License-Identifier: Apache-2.0
"""Losses, penalties and augmentation of generators and discriminators."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.core.arrays.spec import ShapeError
from nnl.core.differentiation.grad import grad
from nnl.core.graph.variable import Variable

Array = np.ndarray[Any, Any]


def adversarial_losses(kind: str, fake: Any, real: Any | None = None) -> Any:
    r"""The loss of a discriminator of scores of real and made images; without real ones, that of
    the generator.

    Args:
        kind: "logistic", the non-saturating one, $\mathrm{softplus}(f) + \mathrm{softplus}(-r)$ and
            $\mathrm{softplus}(-f)$; "least_squares", $f^2 + (r - 1)^2$ and $(f - 1)^2$; "hinge",
            $\max(0, 1 + f) + \max(0, 1 - r)$ and $-f$; "wasserstein", $f - r$ and $-f$.
        fake, real: Scores, of any shape.
    Returns:
        The mean, a scalar.
    Raises:
        ValueError: kind is unknown.
    Source: Goodfellow et al., arXiv:1406.2661; Mao et al., arXiv:1611.04076; Lim and Ye,
        arXiv:1705.02894; Arjovsky et al., arXiv:1701.07875.
    Example:
        >>> with nn.auto_forward():
        ...     float(adversarial_losses("hinge", array([0.5]), array([2.0])).d)
        1.5
    """
    if kind not in ("logistic", "least_squares", "hinge", "wasserstein"):
        raise ValueError(
            f"adversarial_losses: kind is {kind!r}, wanted logistic, least_squares, hinge or "
            "wasserstein"
        )
    if kind == "logistic":
        if real is None:
            return F.mean(F.softplus(-fake))
        return F.mean(F.softplus(fake)) + F.mean(F.softplus(-real))
    if kind == "least_squares":
        if real is None:
            return F.mean((fake - 1.0) ** 2)
        return F.mean(fake**2) + F.mean((real - 1.0) ** 2)
    if real is None:
        return -F.mean(fake)
    if kind == "hinge":
        return F.mean(F.relu(fake + 1.0)) + F.mean(F.relu(1.0 - real))
    return F.mean(fake) - F.mean(real)


def r1_penalty(scores: Any, images: Any) -> Any:
    r"""The mean of $|\nabla_x D(x)|^2$ over real images.

    Args:
        scores: (B, 1) or (B,), of the images.
        images: (B, C, H, W), with need_grad.
    Source: Mescheder et al., arXiv:1801.04406, equation 9, without its factor.
    Example:
        >>> x = nn.Variable((2, 3), need_grad=True)
        >>> with nn.auto_forward():
        ...     float(r1_penalty(F.sum(2 * x, axis=1), x).d)
        12.0
    """
    (g,) = grad([F.sum(scores)], [images])
    return F.sum(g * g) / images.shape[0]


def gradient_penalty(
    discriminate: Callable[[Any], Any], real: Any, fake: Any, center: float = 1.0
) -> Any:
    r"""WGAN-GP: the mean of $(|\nabla D(\hat x)| - c)^2$ between real and made images.

    Args:
        discriminate: Scores of images.
        real, fake: (B, ...); $\hat x$ lies evenly between the two of each pair.
        center: $c$.
    Raises:
        ShapeError: The shapes differ.
    Source: Gulrajani et al., arXiv:1704.00028, equation 3, without its factor.
    Example:
        >>> x = array(np.ones((2, 3)))
        >>> with nn.auto_forward():
        ...     penalty = gradient_penalty(lambda x: F.sum(2 * x, axis=1), x, x * 0)
        >>> round(float(penalty.d), 4)
        6.0718
    """
    if real.shape != fake.shape:
        raise ShapeError(
            f"gradient_penalty: real has the shape {real.shape}, fake {fake.shape}: wanted the same"
        )
    share = F.rand(shape=(real.shape[0], *(1 for _ in real.shape[1:])))
    between = F.unlink(real * share + fake * (1.0 - share))
    between.need_grad = True
    (g,) = grad([F.sum(discriminate(between))], [between])
    length = F.sum(g * g, axis=tuple(range(1, g.ndim)))
    # the root has no gradient at 0
    return F.mean((F.pow_scalar(length + 1e-12, 0.5) - center) ** 2)


def path_length(images: Any, w: Any, mean: Any, decay: float = 0.99) -> Any:
    r"""How unevenly a generator moves images as w moves: $(|J^T y| - a)^2$ with
    $y \sim N(0, I)$, the mean over images.

    Args:
        images: (B, C, H, W), made of w.
        w: (B, L, D) or (B, D), with need_grad or made of parameters.
        mean: $a$, a Variable (1,), which moves towards the lengths of each batch.
        decay: How slowly.
    Source: Karras et al., arXiv:1912.04958, section 3.2.
    Example:
        >>> w, mean = nn.Variable((2, 4), need_grad=True), nn.Variable((1,))
        >>> y = F.reshape(w, (2, 1, 2, 2))
        >>> path_length(y, w, mean).shape
        ()
    """
    pixels = images.shape[2] * images.shape[3]
    noise = F.randn(shape=images.shape) * (1 / sqrt(pixels))
    (g,) = grad([F.sum(images * noise)], [w])
    layers = w.shape[1] if w.ndim == 3 else 1
    axes = tuple(range(1, g.ndim))
    lengths = F.pow_scalar(F.sum(g * g, axis=axes) / layers + 1e-12, 0.5)
    now = F.mean(F.unlink(lengths), keepdims=True)
    moved = mean * decay + now * (1 - decay)
    kept = F.assign(mean, moved)
    return F.mean((lengths - F.unlink(kept)) ** 2)


class ImagePool:
    """Made images of the past, so that a discriminator does not forget them.

    Args:
        size: How many are kept; 0: none.
        seed: Of what is given back.
    Attributes:
        images, rng: What is kept, and what draws: all that a run which goes on must have again.
    Source: Shrivastava et al., arXiv:1612.07828, section 2.3; Zhu et al., arXiv:1703.10593.
    Example:
        >>> pool = ImagePool(2)
        >>> pool.exchange(np.zeros((2, 1, 4, 4))).shape
        (2, 1, 4, 4)
    """

    def __init__(self, size: int = 50, seed: int = 0) -> None:
        self.size, self.images = size, []
        self.rng = np.random.default_rng(seed)

    def exchange(self, images: Array) -> Array:
        """Images (B, ...): half of them, on average, taken out of the pool in exchange."""
        given = []
        for image in images:
            if len(self.images) < self.size:
                self.images.append(image.copy())
                given.append(image)
            elif self.size and self.rng.random() < 0.5:
                place = self.rng.integers(self.size)
                given.append(self.images[place])
                self.images[place] = image.copy()
            else:
                given.append(image)
        return np.stack(given)


class AdaptiveAugmentation:
    r"""How likely images are changed before a discriminator sees them: more where it overfits.

    Args:
        target: Of $r_t = E[\mathrm{sign}(D(x))]$ over real images.
        images: The probability goes from 0 to 1 within so many images, at most.
        largest: Of the probability; from 1 on, changes leak into what is made.
    Attributes:
        probability: As it is now.
    Source: Karras et al., arXiv:2006.06676, section 3.1.
    Example:
        >>> augmentation = AdaptiveAugmentation(images=10)
        >>> augmentation.update(np.ones(4))
        0.4
    """

    def __init__(self, target: float = 0.6, images: float = 500e3, largest: float = 0.8) -> None:
        self.target, self.images, self.largest, self.probability = target, images, largest, 0.0

    def update(self, scores: Any) -> float:
        """Take the scores of a batch of real images; the probability from now on."""
        s = np.asarray(scores)
        way = np.sign(np.sign(s).mean() - self.target) * s.size / self.images
        self.probability = float(np.clip(self.probability + way, 0, self.largest))
        return self.probability


def augmented(images: Any, probability: Any) -> Any:
    r"""Images mirrored, moved, turned, scaled, and of other light, each change drawn by itself.

    Everything has gradients, so that a generator learns through it.

    Args:
        images: (B, C, H, W) in [-1, 1].
        probability: A Variable without axes, or a number.
    Source: Karras et al., arXiv:2006.06676, appendix B; without its filters.
    Example:
        >>> augmented(nn.Variable((2, 3, 8, 8)), 0.5).shape
        (2, 3, 8, 8)
    """
    b, channels, h, w = images.shape

    def chosen(value: Any, otherwise: float) -> Any:
        """Of each image its value, or with 1 - probability the one that changes nothing."""
        hit = F.less(F.rand(shape=(b, 1)), p)
        return F.where(hit, value, F.constant(otherwise, (b, 1)))

    p = F.broadcast(F.reshape(_variable(probability), (1, 1)), (b, 1))
    mirror = chosen(F.constant(-1.0, (b, 1)), 1.0)
    angle = chosen(F.rand(-np.pi, np.pi, (b, 1)) * 0.25, 0.0)
    scale = F.exp(chosen(F.randn(0, 0.15, (b, 1)), 0.0))
    across, down = (chosen(F.rand(-0.25, 0.25, (b, 1)), 0.0) for _ in range(2))
    cos, sin = F.cos(angle) * scale, F.sin(angle) * scale
    row = [cos * mirror, -1.0 * sin, across, sin * mirror, cos, down]
    grid = F.affine_grid(F.reshape(F.concatenate(*row, axis=1), (b, 2, 3)), size=(h, w))
    y = F.warp_by_grid(images, grid, padding_mode="reflect")
    light = F.reshape(chosen(F.randn(0, 0.2, (b, 1)), 0.0), (b, 1, 1, 1))
    contrast = F.reshape(F.exp(chosen(F.randn(0, 0.3, (b, 1)), 0.0)), (b, 1, 1, 1))
    return y * contrast + light


def _variable(value: Any) -> Any:
    if isinstance(value, Variable):
        return value
    return Variable.from_numpy_array(np.array(value, np.float32))
