# SPDX-License-Identifier: Apache-2.0
"""Softmax, cross entropies and losses against PyTorch."""

import numpy as np
import pytest

import nnl.functions as F
from tests.functions.against_torch import compare

torch = pytest.importorskip("torch")
tf = torch.nn.functional
RNG = np.random.default_rng(0)
X, Z = RNG.normal(size=(2, 3, 4, 5))
P, Q = RNG.uniform(0.1, 0.9, (2, 3, 4))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax_and_its_logarithm(axis):
    compare(lambda x: F.softmax(x, axis), lambda x: x.softmax(axis), X)
    compare(lambda x: F.log_softmax(x, axis), lambda x: x.log_softmax(axis), X)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax_cross_entropy(axis):
    n = X.shape[axis]
    label = np.random.default_rng(1).integers(0, n, np.delete(X.shape, axis))

    def reference(x, t):
        x = x.movedim(axis, 1)
        return tf.cross_entropy(x, t.squeeze(axis), reduction="none").unsqueeze(axis)

    compare(
        lambda x, t: F.softmax_cross_entropy(x, t, axis), reference, X * 5,
        fixed=[np.expand_dims(label, axis)],
    )  # fmt: skip


def test_negative_labels_are_ignored():
    label = np.array([[1], [-1], [3]])

    def reference(x, t):
        return tf.cross_entropy(x, t[:, 0], reduction="none", ignore_index=-1)[:, None]

    compare(F.softmax_cross_entropy, reference, X[0, :3], fixed=[label])

    def of_probabilities(p, t):
        return tf.nll_loss(p.log(), t[:, 0], reduction="none", ignore_index=-1)[:, None]

    compare(F.categorical_cross_entropy, of_probabilities, P, fixed=[label])


def test_binary_cross_entropies():
    compare(
        F.binary_cross_entropy, lambda p, t: tf.binary_cross_entropy(p, t, reduction="none"), P,
        fixed=[Q],
    )  # fmt: skip

    def with_logits(x, t):
        return tf.binary_cross_entropy_with_logits(x, t.double(), reduction="none")

    compare(F.sigmoid_cross_entropy, with_logits, X * 9, fixed=[(Z > 0).astype(np.int64)])


def test_losses_of_a_difference():
    def huber(delta):
        return lambda a, b: 2 * tf.huber_loss(a, b, reduction="none", delta=delta)

    compare(F.squared_error, lambda a, b: (a - b) ** 2, X, Z)
    compare(F.absolute_error, lambda a, b: (a - b).abs(), X, Z)
    compare(F.huber_loss, huber(1.0), X, Z)
    compare(lambda a, b: F.huber_loss(a, b, 0.4), huber(0.4), X, Z)
    compare(
        lambda a, b: F.epsilon_insensitive_loss(a, b, 0.5),
        lambda a, b: ((a - b).abs() - 0.5).relu(), X, Z,
    )  # fmt: skip


def test_losses_of_a_difference_broadcast():
    for f, g in ((F.squared_error, tf.mse_loss), (F.absolute_error, tf.l1_loss)):
        compare(
            f, lambda a, b, g=g: g(a.expand(3, 4, 5), b.expand(3, 4, 5), reduction="none"),
            X[:, :1], Z[:1],
        )  # fmt: skip


def test_kl_multinomial():
    def reference(p, q):
        return tf.kl_div((q + 1e-8).log(), p, reduction="none").sum(1, True)

    compare(F.kl_multinomial, reference, P, Q, rtol=1e-6)


def test_scores_of_several_blocks():
    rng = np.random.default_rng(2)
    x, label = rng.normal(size=(300, 700)), rng.integers(0, 700, (300, 1))

    def reference(x, t):
        return tf.cross_entropy(x, t[:, 0], reduction="none")[:, None]

    compare(F.softmax_cross_entropy, reference, x, fixed=[label], order=1)
