# SPDX-License-Identifier: Apache-2.0
"""BERT learns to answer questions by pointing at the first and the last token of the answer.

    python examples/programs/bert_qa.py [--mode coexecute] [--steps 100] [--size paper]

Padding, dropout, AdamW with a learning rate that falls, gradients clipped by their norm. Source:
Devlin et al., arXiv:1810.04805, section 4.2.

Expected, with --mode coexecute:

    loss 1.1214 after 10 steps, 0.7414 after 100
"""

import numpy as np
from common import main

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.models import bert

# batch, tokens, vocabulary, width, layers, heads, learning rate
SIZES = {"small": (8, 32, 100, 64, 2, 4, 3e-3), "paper": (4, 384, 30522, 768, 12, 12, 3e-5)}
CLASSIFY, SEPARATE, WHO, WHEN = 1, 2, 3, 4  # tokens; 0 is padding
NAMES, DATES, WORDS = 5, 15, 25  # where the tokens of each kind begin
FALL = 2000  # steps until the learning rate is 0


def questions(rng, batch, length, vocabulary):
    """Endless batches of a question, who or when, and a text with one name and one date.

    Yields tokens, segments, 1 for tokens and 0 for padding, first and last position of the answer.
    """
    segments = np.broadcast_to(np.arange(length) >= 3, (batch, length)).astype(np.float32)
    while True:
        tokens = np.zeros((batch, length), np.int64)
        first = np.zeros((batch, 1), np.int64)
        for line, start in zip(tokens, first, strict=True):
            end = rng.integers(length // 2, length)
            asked = rng.integers(2)
            line[:3] = CLASSIFY, (WHO, WHEN)[asked], SEPARATE
            line[3:end] = rng.integers(WORDS, vocabulary, end - 3)
            line[end - 1] = SEPARATE
            places = 3 + 2 * rng.permutation((end - 4) // 2)[:2]
            for place, kind in zip(places, (NAMES, DATES), strict=True):
                line[place : place + 2] = rng.integers(kind, kind + 10, 2)
            start[0] = places[asked]
        yield tokens, segments, (tokens > 0).astype(np.float32), first, first + 1


class Program:
    unit = "tokens"

    def __init__(self, size):
        self.batch, self.length, self.vocabulary, *sizes, rate = SIZES[size]
        self.width, self.layers, self.heads = sizes
        self.items, self.rate, self.steps_done = self.batch * self.length, rate, 0
        shape = (self.batch, self.length)
        self.network(*(nn.Variable(shape) for _ in range(3)))  # makes the parameters
        self.solver = S.AdamW(rate, wd=0.01)
        self.solver.set_parameters(nn.get_parameters())

    def batches(self, rng):
        return questions(rng, self.batch, self.length, self.vocabulary)

    def network(self, tokens, segments, keep):
        """Scores (B, T) of every position: for the first and for the last token of the answer."""
        sizes = (self.vocabulary, self.width, self.layers, self.heads, self.length)
        h, _ = bert(tokens, segments, keep, *sizes)
        scores = PF.affine(h, 2, base_axis=2, name="answer")
        return F.split(scores, axis=2)

    def step(self, *batch):
        tokens, segments, keep, first, last = map(nn.Variable.from_numpy_array, batch)
        first_scores, last_scores = self.network(tokens, segments, keep)
        loss = F.softmax_cross_entropy(first_scores, first)
        loss = F.mean(loss + F.softmax_cross_entropy(last_scores, last)) / 2
        self.solver.zero_grad()
        loss.backward()
        self.solver.clip_grad_by_norm(1.0)
        self.solver.set_learning_rate(self.rate * max(0, 1 - self.steps_done / FALL))
        self.solver.update()
        self.steps_done += 1
        return loss


if __name__ == "__main__":
    main(Program)
