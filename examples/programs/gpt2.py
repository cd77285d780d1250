# SPDX-License-Identifier: Apache-2.0
"""GPT-2 learns a language of a few rules, then writes some of it.

    python examples/programs/gpt2.py [--mode coexecute] [--steps 100] [--size paper]

Dropout, Adam, a learning rate that rises and falls, gradients clipped by their norm. Source:
Radford et al., Language Models are Unsupervised Multitask Learners, 2019.

Expected, with --mode coexecute:

    loss 3.6195 after 10 steps, 0.8467 after 100
"""

import math

import numpy as np
from common import main

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.models import gpt2

# batch, tokens, vocabulary, width, layers, heads, learning rate
SIZES = {"small": (8, 32, 64, 64, 2, 4, 3e-3), "paper": (8, 515, 50257, 768, 12, 12, 3e-4)}
RISE, FALL = 20, 2000  # steps that the learning rate rises and falls for
TYPOS = 0.1


def texts(rng, batch, length, vocabulary):
    """Endless batches of tokens: each follows from the one before, but for a typo now and then."""
    follower = rng.permutation(vocabulary)
    while True:
        tokens = rng.integers(0, vocabulary, (length + 1, batch))
        for i in range(length):
            right = rng.random(batch) >= TYPOS
            tokens[i + 1, right] = follower[tokens[i, right]]
        yield tokens[:-1].T.copy(), tokens[1:].T.copy()[:, :, None]


class Program:
    unit = "tokens"

    def __init__(self, size):
        self.batch, self.length, self.vocabulary, *sizes, self.rate = SIZES[size]
        self.width, self.layers, self.heads = sizes
        self.items, self.steps_done = self.batch * self.length, 0
        self.network(nn.Variable((self.batch, self.length)))  # makes the parameters
        self.solver = S.Adam(self.rate, beta2=0.98)
        self.solver.set_parameters(nn.get_parameters())

    def batches(self, rng):
        return texts(rng, self.batch, self.length, self.vocabulary)

    def network(self, tokens, test=False):
        sizes = (self.vocabulary, self.width, self.layers, self.heads, self.length)
        return gpt2(tokens, *sizes, test=test)

    def scheduled_rate(self):
        if self.steps_done < RISE:
            return self.rate * (self.steps_done + 1) / RISE
        done = min(1, (self.steps_done - RISE) / FALL)
        return self.rate * 0.5 * (1 + math.cos(math.pi * done))

    def step(self, tokens, following):
        y = self.network(nn.Variable.from_numpy_array(tokens))
        t = nn.Variable.from_numpy_array(following)
        loss = F.mean(F.softmax_cross_entropy(y, t, axis=2))
        self.solver.zero_grad()
        loss.backward()
        self.solver.clip_grad_by_norm(1.0)
        self.solver.set_learning_rate(self.scheduled_rate())
        self.solver.update()
        self.steps_done += 1
        return loss

    def write(self, tokens, count):
        """The tokens and so many more, each the most likely one."""
        tokens = np.array([tokens])
        with nn.auto_forward():
            while count > 0:
                y = self.network(nn.Variable.from_numpy_array(tokens[:, -self.length :]), test=True)
                tokens = np.append(tokens, y.d[:, -1:].argmax(2), axis=1)
                count -= 1
        return tokens[0].tolist()


if __name__ == "__main__":
    made = main(Program)
    print("written:", *made.write([0], 20))
