# SPDX-License-Identifier: Apache-2.0
"""The networks of the deep-learning tutorials, written from their description, learn digits."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

import nnl.dialects.theano as theano
import nnl.dialects.theano.tensor as T
from nnl.dialects.theano.tensor.nnet import conv2d
from nnl.dialects.theano.tensor.shared_randomstreams import RandomStreams
from nnl.dialects.theano.tensor.signal import pool

floatX = theano.config.floatX
BATCH = 50


@pytest.fixture(scope="module")
def digits():
    data = pytest.importorskip("sklearn.datasets").load_digits()
    order = np.random.RandomState(0).permutation(len(data.data))
    return (data.data[order] / 16).astype(floatX), data.target[order].astype("int32")


def weights(rng, *shape):
    bound = np.sqrt(6.0 / (np.prod(shape[1:]) + shape[0]))
    return theano.shared(rng.uniform(-bound, bound, shape).astype(floatX), name="W", borrow=True)


def zeros(n, name="b"):
    return theano.shared(np.zeros(n, floatX), name=name, borrow=True)


class LogisticRegression:
    def __init__(self, input, n_in, n_out):
        self.W, self.b = theano.shared(np.zeros((n_in, n_out), floatX), name="W"), zeros(n_out)
        self.p_y_given_x = T.nnet.softmax(T.dot(input, self.W) + self.b)
        self.y_pred = T.argmax(self.p_y_given_x, axis=1)
        self.params = [self.W, self.b]

    def negative_log_likelihood(self, y):
        return -T.mean(T.log(self.p_y_given_x)[T.arange(y.shape[0]), y])

    def errors(self, y):
        return T.mean(T.neq(self.y_pred, y))


def fit(digits, x, y, cost, params, errors, rate, epochs):
    """Steps over minibatches, chosen by an index into what is shared; the error on the rest."""
    images, labels = digits
    held, classes = theano.shared(images[:1500]), T.cast(theano.shared(labels[:1500]), "int32")
    index = T.lscalar()
    updates = [(p, p - rate * g) for p, g in zip(params, T.grad(cost, params), strict=True)]
    part = slice(index * BATCH, (index + 1) * BATCH)
    train = theano.function(
        [index], cost, updates=updates, givens={x: held[part], y: classes[part]}
    )
    test = theano.function([x, y], errors)
    costs = [np.mean([train(i) for i in range(1500 // BATCH)]) for _ in range(epochs)]
    assert costs[-1] < costs[0] and len(train.inner.plans) == 1
    return float(test(images[1500:], labels[1500:]))


def test_logistic_regression(digits):
    x, y = T.matrix("x"), T.ivector("y")
    classifier = LogisticRegression(x, 64, 10)
    cost = classifier.negative_log_likelihood(y)
    assert fit(digits, x, y, cost, classifier.params, classifier.errors(y), 0.5, 12) < 0.1


def test_multilayer_perceptron(digits):
    rng = np.random.RandomState(1234)
    x, y = T.matrix("x"), T.ivector("y")
    W, b = weights(rng, 64, 40), zeros(40)
    top = LogisticRegression(T.tanh(T.dot(x, W) + b), 40, 10)
    L1, L2 = abs(W).sum() + abs(top.W).sum(), (W**2).sum() + (top.W**2).sum()
    cost = top.negative_log_likelihood(y) + 0.0 * L1 + 0.0001 * L2
    assert fit(digits, x, y, cost, [W, b, *top.params], top.errors(y), 0.3, 12) < 0.08


def test_lenet(digits):
    rng = np.random.RandomState(23455)
    x, y = T.matrix("x"), T.ivector("y")
    W, b = weights(rng, 6, 1, 3, 3), zeros(6)
    images = x.reshape((x.shape[0], 1, 8, 8))
    layer = pool.pool_2d(conv2d(images, W), ws=(2, 2), ignore_border=True)
    layer = T.tanh(layer + b.dimshuffle("x", 0, "x", "x")).flatten(2)
    W1, b1 = weights(rng, 54, 32), zeros(32)
    top = LogisticRegression(T.tanh(T.dot(layer, W1) + b1), 32, 10)
    params = [W, b, W1, b1, *top.params]
    cost = top.negative_log_likelihood(y)
    assert fit(digits, x, y, cost, params, top.errors(y), 0.3, 12) < 0.08


def test_denoising_autoencoder(digits):
    """What is put together again of corrupted images is nearer to them than their mean is."""
    images = digits[0]
    rng, draws = np.random.RandomState(123), RandomStreams(123)
    x = T.matrix("x")
    W, b, b_prime = weights(rng, 64, 50), zeros(50), zeros(64, "b_prime")

    def reconstructed(seen):
        hidden = T.nnet.sigmoid(T.dot(seen, W) + b)
        return T.nnet.sigmoid(T.dot(hidden, W.T) + b_prime)

    def corrupted(seen, level):
        return draws.binomial(size=seen.shape, n=1, p=1 - level, dtype=floatX) * seen

    z = reconstructed(corrupted(x, 0.3))
    cost = T.mean(-T.sum(x * T.log(z) + (1 - x) * T.log(1 - z), axis=1))
    params = [W, b, b_prime]
    updates = [(p, p - 0.1 * g) for p, g in zip(params, T.grad(cost, params), strict=True)]
    train = theano.function([x], cost, updates=updates)
    batches = [images[i : i + BATCH] for i in range(0, 1500, BATCH)]
    costs = [np.mean([train(batch) for batch in batches]) for _ in range(10)]
    assert costs[-1] < 0.8 * costs[0]
    again = reconstructed(x).eval({x: images[1500:]})
    far = ((images[1500:] - images[:1500].mean(0)) ** 2).mean()
    assert ((again - images[1500:]) ** 2).mean() < 0.5 * far


def test_lstm(digits):
    """Rows of an image as a sequence, with a mask; the mean of all states is classified."""
    images, labels = digits
    rng, n = np.random.RandomState(7), 24
    x, mask, y = T.tensor3("x"), T.matrix("mask"), T.ivector("y")
    W, U, b = weights(rng, 8, 4 * n), weights(rng, n, 4 * n), zeros(4 * n)

    def part(preact, k):
        return preact[:, k * n : (k + 1) * n]

    def step(m_, x_, h_, c_):
        preact = T.dot(h_, U) + x_
        i, f, o = (T.nnet.sigmoid(part(preact, k)) for k in range(3))
        c = f * c_ + i * T.tanh(part(preact, 3))
        c = m_[:, None] * c + (1.0 - m_)[:, None] * c_
        h = o * T.tanh(c)
        return m_[:, None] * h + (1.0 - m_)[:, None] * h_, c

    start = T.alloc(np.asarray(0.0, floatX), x.shape[1], n)
    (hidden, _), updates = theano.scan(
        step,
        sequences=[mask, T.dot(x, W) + b],
        outputs_info=[start, start],
        name="lstm_layers",
        n_steps=x.shape[0],
    )
    assert not updates
    proj = (hidden * mask[:, :, None]).sum(axis=0) / mask.sum(axis=0)[:, None]
    top = LogisticRegression(proj, n, 10)
    cost = top.negative_log_likelihood(y)
    params = [W, U, b, *top.params]
    grads = T.grad(cost, wrt=params)
    squares = [theano.shared(np.zeros_like(p.get_value())) for p in params]
    new = [0.9 * s + 0.1 * g**2 for s, g in zip(squares, grads, strict=True)]  # RMSProp
    changes = OrderedDict(zip(squares, new, strict=True))
    for p, g, s in zip(params, grads, new, strict=True):
        changes[p] = p - 0.02 * g / T.sqrt(s + 1e-4)
    train = theano.function([x, mask, y], cost, updates=changes)
    errors = theano.function([x, mask, y], top.errors(y))
    rows = images.reshape(-1, 8, 8).transpose(1, 0, 2)
    for epoch in range(12):
        for i in range(0, 1500, BATCH):
            lengths = 8 - epoch % 2  # one program for each
            seen = rows[:lengths, i : i + BATCH]
            train(seen, np.ones(seen.shape[:2], floatX), labels[i : i + BATCH])
    assert len(train.inner.plans) == 2
    seen = rows[:, 1500:]
    assert errors(seen, np.ones(seen.shape[:2], floatX), labels[1500:]) < 0.15
