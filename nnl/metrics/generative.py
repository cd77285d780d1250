# SPDX-License-Identifier: Apache-2.0
"""How alike two sets are, of real samples and generated ones, in a space of features.

Numbers of papers take the 2048 features of an Inception network; features of any network make a
measure, and numbers of one network cannot be compared with those of another.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.core.arrays.spec import ShapeError
from nnl.metrics.checks import Array, real


class Moments:
    """Mean and covariance of features that come in parts, which need not be kept.

    Attributes:
        count: Number of samples.
        mean: (D,), float64.
    Example:
        >>> moments = Moments()
        >>> moments.update([[0.0, 1.0], [2.0, 3.0]])
        >>> moments.update([[4.0, 5.0]])
        >>> moments.count, moments.mean, moments.covariance
        (3, array([2., 3.]), array([[4., 4.],
               [4., 4.]]))
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean: Array = np.zeros(0)
        self._scatter: Array = np.zeros((0, 0))  # sum of (x - mean) (x - mean)^T

    def update(self, features: Any) -> None:
        """Add features (N, D)."""
        x = real("Moments.update", "features", features, 2)
        if not self.count:
            self.mean, self._scatter = np.zeros(x.shape[1]), np.zeros((x.shape[1],) * 2)
        elif x.shape[1] != len(self.mean):
            raise ShapeError(
                f"Moments.update: features have the shape {x.shape}, wanted (N, {len(self.mean)})"
            )
        mean = x.mean(0)
        centred, shift = x - mean, mean - self.mean
        total = self.count + len(x)
        self._scatter += centred.T @ centred
        self._scatter += np.outer(shift, shift) * (self.count * len(x) / total)
        self.mean = self.mean + shift * (len(x) / total)
        self.count = total

    @property
    def covariance(self) -> Array:
        """(D, D), divided by N - 1."""
        if self.count < 2:
            raise ValueError(f"Moments.covariance: there are {self.count} samples, wanted 2")
        return self._scatter / (self.count - 1)


def frechet_distance(a: Any, b: Any) -> float:
    r"""FID: the distance of the normal distributions that have the moments of two sets.

    $$d = |\mu_a - \mu_b|^2 + \mathrm{tr}(\Sigma_a + \Sigma_b - 2 (\Sigma_a \Sigma_b)^{1/2})$$

    Args:
        a, b: Features (N, D), or Moments.
    Returns:
        At least 0; it falls with more samples, so compare only numbers of as many.
    Raises:
        ShapeError, ValueError: D differs, or a set has less than two samples.
    Source: Heusel et al., arXiv:1706.08500, equation 6.
    Example:
        >>> round(frechet_distance([[0.0], [2.0]], [[1.0], [3.0]]), 6)
        1.0
    """
    a, b = _moments(a), _moments(b)
    if a.mean.shape != b.mean.shape:
        raise ShapeError(
            f"frechet_distance: a has {a.mean.size} features a sample, b {b.mean.size}"
        )
    # the trace of (A B)^(1/2) is that of the symmetric (A^(1/2) B A^(1/2))^(1/2)
    values, vectors = np.linalg.eigh(a.covariance)
    root = (vectors * np.sqrt(values.clip(0))) @ vectors.T
    cross = np.sqrt(np.linalg.eigvalsh(root @ b.covariance @ root).clip(0)).sum()
    shift = a.mean - b.mean
    found = shift @ shift + np.trace(a.covariance) + np.trace(b.covariance) - 2 * cross
    return max(float(found), 0.0)


def kernel_distance(
    a: Any, b: Any, subset_size: int | None = None, subsets: int = 100, seed: int = 0
) -> float:
    r"""KID: the unbiased squared maximum mean discrepancy with $k(x, y) = (x \cdot y / D + 1)^3$.

    Args:
        a, b: Features (N, D).
        subset_size, subsets: Take the mean over so many random parts of both; None takes all.
        seed: Of the parts.
    Returns:
        Around 0 for sets of one distribution, so it may be below.
    Raises:
        ShapeError, ValueError: D differs, or a set is smaller than subset_size, or than two.
    Source: Binkowski et al., Demystifying MMD GANs, arXiv:1801.01401, section 4.
    Example:
        >>> kernel_distance([[0.0], [0.0]], [[1.0], [1.0]])
        7.0
    """
    x, y = _pair("kernel_distance", a, b)
    least = min(len(x), len(y))
    if subset_size is None:
        return _discrepancy(x, y)
    if not 2 <= subset_size <= least:
        raise ValueError(f"kernel_distance: subset_size is {subset_size}, wanted 2 to {least}")
    rng = np.random.default_rng(seed)
    drawn = [
        _discrepancy(*(s[rng.choice(len(s), subset_size, replace=False)] for s in (x, y)))
        for _ in range(subsets)
    ]
    return float(np.mean(drawn))


def precision_recall_of_features(real_features: Any, features: Any, k: int = 3) -> dict[str, float]:
    """How many generated samples look real, and how many real ones could have been generated.

    A ball around each sample reaches to its k-th neighbour in its own set.

    Returns:
        precision, the share of generated samples in a ball of a real one; recall, of real samples
        in a ball of a generated one; density, the number of real balls around generated samples, by
        k; coverage, the share of real balls with a generated sample in it.
    Raises:
        ShapeError, ValueError: D differs, or a set has not more than k samples.
    Source: Kynkäänniemi et al., arXiv:1904.06991, equation 2; Naeem et al., arXiv:2002.09797,
        equations 5 and 6.
    Example:
        >>> found = precision_recall_of_features([[0.0], [1.0]], [[0.5], [9.0]], k=1)
        >>> found["precision"], found["recall"], found["density"], found["coverage"]
        (0.5, 1.0, 1.0, 1.0)
    """
    where = "precision_recall_of_features"
    x, y = _pair(where, real_features, features)
    if not 1 <= k < min(len(x), len(y)):
        raise ValueError(f"{where}: k is {k}, wanted 1 to {min(len(x), len(y)) - 1}")
    # the nearest is the sample itself
    near_x, near_y = (np.partition(_squares(s, s), k, axis=1)[:, k] for s in (x, y))
    between = _squares(x, y)
    inside = between <= near_x[:, None]
    return {
        "precision": float(inside.any(0).mean()),
        "recall": float((between <= near_y[None]).any(1).mean()),
        "density": float(inside.sum() / (k * len(y))),
        "coverage": float(inside.any(1).mean()),
    }


def inception_score(probabilities: Any) -> float:
    r"""How clear and how varied classes of generated samples are, $\exp E_x KL(p(y|x) | p(y))$.

    Args:
        probabilities: (N, C), of a classifier; rows sum to 1.
    Returns:
        1 to C.
    Source: Salimans et al., Improved Techniques for Training GANs, arXiv:1606.03498, section 4.
    Example:
        >>> round(inception_score([[1.0, 0.0], [0.0, 1.0]]), 6)
        2.0
    """
    p = real("inception_score", "probabilities", probabilities, 2)
    if p.min() < 0 or np.abs(p.sum(1) - 1).max() > 1e-3:
        raise ValueError("inception_score: rows of probabilities do not sum to 1")
    ratio = np.log(np.maximum(p, 1e-300) / np.maximum(p.mean(0), 1e-300))
    return float(np.exp((p * ratio).sum(1).mean()))


def _moments(given: Any) -> Moments:
    if isinstance(given, Moments):
        return given
    moments = Moments()
    moments.update(given)
    return moments


def _pair(where: str, a: Any, b: Any) -> tuple[Array, Array]:
    x, y = real(where, "the first set", a, 2), real(where, "the second set", b, 2)
    if x.shape[1] != y.shape[1]:
        raise ShapeError(f"{where}: sets have {x.shape[1]} and {y.shape[1]} features a sample")
    if min(len(x), len(y)) < 2:
        raise ValueError(f"{where}: sets have {len(x)} and {len(y)} samples, wanted 2 or more")
    return x, y


def _discrepancy(x: Array, y: Array) -> float:
    def mean(a: Array, b: Array, same: bool) -> Any:
        k = (a @ b.T / a.shape[1] + 1) ** 3
        if same:  # a sample is not compared with itself
            return (k.sum() - np.trace(k)) / (len(a) * (len(a) - 1))
        return k.mean()

    return float(mean(x, x, True) + mean(y, y, True) - 2 * mean(x, y, False))


def _squares(a: Array, b: Array) -> Array:
    """Squared distances, (N, M)."""
    found = (a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * (a @ b.T)
    if a is b:
        np.fill_diagonal(found, 0)
    return found.clip(0)
