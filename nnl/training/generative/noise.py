# SPDX-License-Identifier: Apache-2.0
"""Noise of diffusion models: how it is added in training, and taken away step by step."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Predict = Callable[[Array, Array], Array]  # noisy images and times (B,) to what is predicted

FILE = "scheduler_config.json"


class NoiseSchedule:
    r"""How much noise images have at each of T times: $x_t = \sqrt{\bar\alpha_t} x_0 +
    \sqrt{1 - \bar\alpha_t}\,\epsilon$.

    Args:
        kind: "linear": $\beta_t$ from `first` to `last`; "scaled_linear": their roots; "cosine".
        steps: T.
        first, last: $\beta_0$ and $\beta_{T-1}$, not of "cosine".
        predicts: What the network predicts: "epsilon", the noise; "sample", the image; or
            "v_prediction", $\sqrt{\bar\alpha}\,\epsilon - \sqrt{1 - \bar\alpha}\,x_0$.
        clip: Limit to which predicted images are cut, None: they are not.
    Attributes:
        alphas_bar: $\bar\alpha_t$, (T,), float64.
    Raises:
        ValueError: A name is unknown or a number out of range.
    Source: Ho et al., arXiv:2006.11239; Nichol and Dhariwal, arXiv:2102.09672, equation 17;
        Song et al., arXiv:2010.02502, equation 12; Salimans and Ho, arXiv:2202.00512.
    Example:
        >>> schedule = NoiseSchedule(steps=10)
        >>> schedule.noisy(np.ones((1, 1)), np.zeros((1, 1)), np.array([0])).round(3)
        array([[1.]])
    """

    def __init__(
        self,
        kind: str = "linear",
        steps: int = 1000,
        first: float = 1e-4,
        last: float = 0.02,
        predicts: str = "epsilon",
        clip: float | None = 1.0,
    ) -> None:
        if kind not in ("linear", "scaled_linear", "cosine"):
            raise ValueError(
                f"NoiseSchedule: kind is {kind!r}, wanted linear, scaled_linear or cosine"
            )
        if predicts not in ("epsilon", "sample", "v_prediction"):
            raise ValueError(
                f"NoiseSchedule: predicts is {predicts!r}, wanted epsilon, sample or v_prediction"
            )
        if steps < 1 or not 0 < first <= last < 1:
            raise ValueError(
                f"NoiseSchedule: steps is {steps}, first {first} and last {last}, wanted steps "
                "above 0 and 0 < first <= last < 1"
            )
        if kind == "linear":
            betas = np.linspace(first, last, steps)
        elif kind == "scaled_linear":
            betas = np.linspace(first**0.5, last**0.5, steps) ** 2
        else:
            bar = np.cos((np.arange(steps + 1) / steps + 0.008) / 1.008 * np.pi / 2) ** 2
            betas = np.minimum(1 - bar[1:] / bar[:-1], 0.999)
        self.steps, self.predicts, self.clip = steps, predicts, clip
        self.alphas_bar: Array = np.cumprod(1 - betas)

    @classmethod
    def from_diffusers(cls, folder: str | os.PathLike[str]) -> NoiseSchedule:
        """The schedule of a folder of diffusers, of its scheduler_config.json.

        Raises:
            ValueError: There is none, or it has a setting that this class does not.
        """
        path, where = Path(folder) / FILE, "NoiseSchedule.from_diffusers"
        try:
            given = json.loads(path.read_text("utf-8"))
            kinds = {"squaredcos_cap_v2": "cosine"}
            kind = kinds.get(given["beta_schedule"], given["beta_schedule"])
            if given.get("trained_betas") is not None or given.get("thresholding"):
                raise ValueError("trained_betas or thresholding is set")
            return cls(
                kind,
                given["num_train_timesteps"],
                given["beta_start"],
                given["beta_end"],
                given.get("prediction_type", "epsilon"),
                given.get("clip_sample_range", 1.0) if given.get("clip_sample", True) else None,
            )
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{where}: {path} is of no use: {error}") from error

    def noisy(self, x: Array, noise: Array, t: Array) -> Array:
        """Images at times t (B,), with the given noise."""
        keep, add = self._shares(t, x.ndim)
        return (keep * x + add * noise).astype(x.dtype)

    def target(self, x: Array, noise: Array, t: Array) -> Array:
        """What the network should predict of them."""
        if self.predicts == "v_prediction":
            keep, add = self._shares(t, x.ndim)
            return (keep * noise - add * x).astype(x.dtype)
        return noise if self.predicts == "epsilon" else x

    def parts(self, x: Array, predicted: Array, t: Array) -> tuple[Array, Array]:
        """The image, cut to `clip`, and the noise that a prediction means."""
        keep, add = self._shares(t, x.ndim)
        if self.predicts == "epsilon":
            image = (x - add * predicted) / keep
        elif self.predicts == "sample":
            image = predicted
        else:
            image = keep * x - add * predicted
        if self.clip is not None:
            image = image.clip(-self.clip, self.clip)
        return image, (x - keep * image) / add

    def times(self, steps: int) -> Array:
        """So many times from the last one down, evenly apart, the first one last."""
        if not 1 <= steps <= self.steps:
            raise ValueError(f"NoiseSchedule: {steps} steps, wanted 1 to {self.steps}")
        return np.arange(steps)[::-1] * (self.steps // steps)

    def sample(
        self, predict: Predict, noise: Array, steps: int = 50, eta: float = 0.0, seed: int = 0
    ) -> Array:
        r"""Images of noise: DDIM, which is DDPM with all steps and eta 1.

        $$x_s = \sqrt{\bar\alpha_s} x_0 + \sqrt{1 - \bar\alpha_s - \sigma^2}\,\epsilon + \sigma z$$

        Args:
            predict: The network, of images and times (B,).
            noise: (B, C, H, W).
            steps: How many are taken.
            eta: How much noise comes anew, 0 to 1: $\sigma^2 = \eta^2 (1 - \bar\alpha_s) /
                (1 - \bar\alpha_t) (1 - \bar\alpha_t / \bar\alpha_s)$.
            seed: Of that noise.
        """
        for x in self.states(predict, noise, steps, eta, seed):
            noise = x
        return noise

    def states(
        self, predict: Predict, noise: Array, steps: int = 50, eta: float = 0.0, seed: int = 0
    ) -> Iterator[Array]:
        """What `sample` has after each of its steps."""
        rng, x = np.random.default_rng(seed), noise
        times = self.times(steps)
        for t, s in zip(times, [*times[1:], None], strict=True):
            image, epsilon = self.parts(x, predict(x, np.full(len(x), t)), np.full(len(x), t))
            # the last step goes to an image, which diffusers says by the first share
            now = self.alphas_bar[t]
            then = 1.0 if s is None else self.alphas_bar[s]
            sigma = eta * np.sqrt((1 - then) / (1 - now) * (1 - now / then))
            x = np.sqrt(then) * image + np.sqrt(max(1 - then - sigma**2, 0)) * epsilon
            if sigma:
                x = x + sigma * rng.standard_normal(x.shape)
            x = x.astype(noise.dtype)
            yield x

    def _shares(self, t: Array, ndim: int) -> tuple[Array, Array]:
        t = np.asarray(t)
        if t.min() < 0 or t.max() >= self.steps:
            raise ValueError(
                f"NoiseSchedule: there is the time {t.min()} or {t.max()}, wanted 0 to "
                f"{self.steps - 1}"
            )
        bar = self.alphas_bar[t].reshape(-1, *(1 for _ in range(ndim - 1)))
        return np.sqrt(bar), np.sqrt(1 - bar)


def guided(
    predict: Callable[[Array, Array, Array], Array], labels: Array, none: int, w: float
) -> Predict:
    r"""Predictions that follow a class more than the network does: $(1 + w)\,\epsilon(x, c) -
    w\,\epsilon(x, \varnothing)$.

    Args:
        predict: The network, of images, times and labels.
        labels: (B,), the classes.
        none: The label that stands for no class, which training has used now and then.
        w: How much; 0 is the network itself, which then runs once.
    Source: Ho and Salimans, Classifier-Free Diffusion Guidance, arXiv:2207.12598, equation 6.
    Example:
        >>> both = guided(lambda x, t, c: c[:, None] * x, np.array([3]), none=0, w=1.0)
        >>> both(np.ones((1, 1)), np.zeros(1))
        array([[6.]])
    """

    def of(x: Array, t: Array) -> Array:
        if not w:
            return predict(x, t, labels)
        n = len(x)
        both = [np.concatenate(pair) for pair in ((x, x), (t, t), (labels, np.full(n, none)))]
        made = predict(*both)
        return (1 + w) * made[:n] - w * made[n:]

    return of


def integrate(
    velocity: Predict, x: Array, steps: int = 20, start: float = 0.0, end: float = 1.0
) -> Array:
    r"""Follow $dx / dt = v(x, t)$ by Heun's method, for flow matching.

    Args:
        velocity: Of images and times (B,).
        x: Images at `start`: noise, where time 1 are images.
        steps: Each takes the velocity twice.
    Returns:
        Images at `end`.
    Source: Lipman et al., Flow Matching for Generative Modeling, arXiv:2210.02747.
    Example:
        >>> float(integrate(lambda x, t: x, np.ones(1), steps=100)[0].round(3))
        2.718
    """
    step = (end - start) / steps
    for i in range(steps):
        t = np.full(len(x), start + i * step, x.dtype)
        first = velocity(x, t)
        second = velocity((x + step * first).astype(x.dtype), t + step)
        x = (x + step / 2 * (first + second)).astype(x.dtype)
    return x
