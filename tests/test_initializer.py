# SPDX-License-Identifier: Apache-2.0
"""Initial values, against NNabla 1.39: literals are float32 bits that it drew (numpy 1.26)."""

from __future__ import annotations

import numpy as np
import pytest

from nnl import initializer as I
from nnl.core.ops import random as nnl_random


class Weight:
    """Stands for a Variable: the values are in d."""

    def __init__(self, d: np.ndarray) -> None:
        self.d = d


def bits(array: np.ndarray) -> str:
    """The first four values as hexadecimal float32."""
    assert array.dtype == np.float32
    return " ".join(f"{word:08x}" for word in array.ravel()[:4].view(np.uint32))


def seeded() -> np.random.RandomState:
    return np.random.RandomState(1)


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parameter generator as it is after the import."""
    monkeypatch.setattr(nnl_random, "prng", np.random.RandomState(313))


def test_normal_draws_nnablas_bits() -> None:
    drawn = I.NormalInitializer(0.3, seeded())((2, 3))
    assert bits(drawn) == "3ef97fdc be3bee7b be22411e bea4ced8"


def test_uniform_draws_nnablas_bits() -> None:
    drawn = I.UniformInitializer((-0.2, 0.3), seeded())((2, 3))
    assert bits(drawn) == "3c0b71bb 3e240192 be4cbdcf bd4805dc"


def test_uniform_int_draws_nnablas_numbers() -> None:
    drawn = I.UniformIntInitializer((-3, 10), seeded())((2, 3))
    assert drawn.dtype == np.int64
    assert drawn.tolist() == [[2, 8, 9], [5, 6, 8]]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 3), "bf4a3a32 3f0b03a5 bf93ad91 3f90c661"),
        ((5, 2), "bf338e6e 3f25752b be48b47f bf6bb8b9"),
        ((3, 2, 2), "3f0986be bf52d8a7 3f47ae9d bf524515"),
    ],
)
def test_orthogonal_gives_nnablas_values(shape: tuple[int, ...], expected: str) -> None:
    drawn = I.OrthogonalInitializer(1.5, seeded())(shape)
    wanted = np.array([int(word, 16) for word in expected.split()], np.uint32).view(np.float32)
    # another LAPACK may round the last bits differently
    np.testing.assert_allclose(drawn.ravel()[:4], wanted, rtol=1e-6)


@pytest.mark.parametrize("shape", [(4, 7), (7, 4), (6, 2, 2), (3, 5, 2)])
def test_orthogonal_has_orthonormal_rows_or_columns(shape: tuple[int, ...]) -> None:
    matrix = I.OrthogonalInitializer(2.0, seeded())(shape).reshape(shape[0], -1)
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    np.testing.assert_allclose(gram, 4.0 * np.eye(len(gram)), atol=1e-5)


@pytest.mark.parametrize(
    ("dim", "expected"),
    [
        (0, "41cbf5f6 42826251"),
        (1, "41ecc744 421d60e7 424709a6"),
        (2, "41fdbd72 42074ad3 420fe38b 4218a15a"),
        (-1, "41fdbd72 42074ad3 420fe38b 4218a15a"),
    ],
)
def test_weight_normalization_scale_is_the_norm_of_each_slice(dim: int, expected: str) -> None:
    w = np.arange(1, 25, dtype=np.float32).reshape(2, 3, 4)
    scale = I.WeightNormalizationScaleInitializer(Weight(w), dim)((w.shape[dim],))
    assert bits(scale) == expected


def test_weight_normalization_scale_takes_the_shape_asked_for() -> None:
    scale = I.WeightNormalizationScaleInitializer(Weight(np.ones((2, 3), np.float32)), 1)
    assert scale((1, 3)).shape == (1, 3)
    assert scale((2, 3)).shape == (3,)  # the shape of the weight: as NNabla, one axis
    with pytest.raises(ValueError, match=r"shape \(2,\) does not hold one scale for each of the 3"):
        scale((2,))


@pytest.mark.usefixtures("generator")
def test_default_generator_is_the_frameworks_and_goes_on() -> None:
    assert bits(I.NormalInitializer()((4,))) == "3e3db9bf bf9e4f0b 3ea6e9ee 3f7f5fd1"
    assert bits(I.UniformInitializer()((4,))) == "3f647a68 3df94635 3f3d3a92 bf27bb20"


@pytest.mark.usefixtures("generator")
def test_default_generator_is_that_of_the_time_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made_before = I.NormalInitializer()
    monkeypatch.setattr(nnl_random, "prng", np.random.RandomState(7))
    assert bits(made_before((4,))) == "3e3db9bf bf9e4f0b 3ea6e9ee 3f7f5fd1"


def test_range_counts_along_the_last_axis() -> None:
    values = I.RangeInitializer(1, 2)((2, 3))
    assert values.tolist() == [[1, 3, 5], [1, 3, 5]]
    assert values.dtype == np.int64
    assert I.RangeInitializer(0, 0.5)((3,)).tolist() == [0.0, 0.5, 1.0]
    assert I.RangeInitializer(0, 2**63)((3,)).tolist() == [0.0, 2.0**63, 2.0**64]
    assert I.RangeInitializer(1, 2**62)((4,))[3] == 3 * 2.0**62  # not wrapped


def test_constant_is_float32() -> None:
    values = I.ConstantInitializer(2.5)((2, 2))
    assert values.dtype == np.float32
    assert values.tolist() == [[2.5, 2.5], [2.5, 2.5]]


def test_deviations_and_limits_follow_their_formulas() -> None:
    assert I.calc_normal_std_he_forward(3, 5, (3, 3)) == pytest.approx((2 / 27) ** 0.5)
    assert I.calc_normal_std_he_backward(3, 5, (3, 3)) == pytest.approx((2 / 45) ** 0.5)
    assert I.calc_normal_std_glorot(3, 5, (3, 3)) == pytest.approx((2 / 72) ** 0.5)
    assert I.calc_uniform_lim_glorot(3, 5) == pytest.approx((-(0.75**0.5), 0.75**0.5))


def test_repr_names_the_argument() -> None:
    assert repr(I.NormalInitializer(0.5)) == "NormalInitializer(0.5)"
    assert repr(I.UniformInitializer((-2, 3))) == "UniformInitializer((-2, 3))"


@pytest.mark.parametrize("initializer", [I.RangeInitializer(), I.OrthogonalInitializer()])
def test_no_axes_is_refused(initializer: I.BaseInitializer) -> None:
    with pytest.raises(ValueError, match=r"Initializer: shape \(\) has no"):
        initializer(())


def test_base_says_what_to_define() -> None:
    with pytest.raises(NotImplementedError, match=r"BaseInitializer: define __call__\(shape\)"):
        I.BaseInitializer()((1,))
