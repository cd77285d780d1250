# SPDX-License-Identifier: Apache-2.0
"""BERT learns to classify sentences and is scored in the middle of each step by scikit-learn.

    python examples/programs/bert_cls.py [--mode coexecute] [--steps 100] [--size paper]

The F1 score is computed by another library, which needs the predictions as numbers: before the
gradients are computed, the step reads what it has predicted.

Expected, with --mode coexecute:

    loss 1.4001 after 10 steps, 0.0037 after 100
"""

import numpy as np
from common import main
from sklearn.metrics import f1_score

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.models import bert

# batch, tokens, vocabulary, width, layers, heads, classes, learning rate
SIZES = {"small": (8, 24, 100, 64, 2, 4, 4, 3e-3), "paper": (4, 512, 21128, 768, 12, 12, 15, 1e-5)}


class F1Score:
    """The F1 score of labels (B, 1) and scores (B, C)."""

    def __init__(self, average):
        self.average = average

    def __call__(self, label, scores):
        truth = F.reshape(label, (-1,)).d
        guess = F.reshape(F.max(scores, axis=1, only_index=True), (-1,)).d
        return f1_score(truth, guess, average=self.average)


def sentences(rng, batch, length, vocabulary, classes):
    """Endless batches of words at random, one of which has the number of the class."""
    while True:
        tokens = rng.integers(classes, vocabulary, (batch, length))
        label = rng.integers(0, classes, (batch, 1))
        tokens[np.arange(batch), rng.integers(1, length, batch)] = label[:, 0]
        yield tokens, label


class Program:
    unit = "tokens"

    def __init__(self, size):
        self.batch, self.length, self.vocabulary, *sizes, self.classes, rate = SIZES[size]
        self.width, self.layers, self.heads = sizes
        self.items = self.batch * self.length
        self.network(nn.Variable((self.batch, self.length)))  # makes the parameters
        self.solver = S.Adam(rate)
        self.solver.set_parameters(nn.get_parameters())
        self.f1 = F1Score(average="macro")
        self.scores = []

    def batches(self, rng):
        return sentences(rng, self.batch, self.length, self.vocabulary, self.classes)

    def network(self, tokens):
        sizes = (self.vocabulary, self.width, self.layers, self.heads, self.length)
        _, summary = bert(tokens, None, None, *sizes)
        return PF.affine(F.dropout(summary, 0.1), self.classes, name="classes")

    def step(self, tokens, label):
        t = nn.Variable.from_numpy_array(label)
        y = self.network(nn.Variable.from_numpy_array(tokens))
        loss = F.mean(F.softmax_cross_entropy(y, t))
        self.scores.append(self.f1(t, y))
        self.solver.zero_grad()
        loss.backward()
        self.solver.update()
        return loss


if __name__ == "__main__":
    main(Program)
