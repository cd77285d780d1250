# SPDX-License-Identifier: Apache-2.0
"""MusicTransformer learns to go on with arpeggios, trained by a model that is its own trainer.

    python examples/programs/music_transformer.py [--mode coexecute] [--steps 100] [--size paper]

The model knows how far apart two events are (relative attention), and keeps what it needs in
attributes: the step writes the loss to one of them, where the rest of the program reads it, and
appends to lists, now and then an array that lives on for many steps. Source: Huang et al., Music
Transformer, arXiv:1809.04281.

Expected, with --mode coexecute:

    loss 3.6004 after 10 steps, 1.6447 after 100
"""

import numpy as np
from common import main

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S

# batch, events, different events, width, layers, heads, learning rate
SIZES = {"small": (4, 32, 48, 64, 2, 4, 3e-3), "paper": (2, 2048, 390, 256, 6, 4, 1e-4)}
KEEP_EVERY = 10  # steps from one look at the attention to the next


def arpeggios(rng, batch, length, events):
    """Endless batches of notes: each goes up by the same intervals, one after the other."""
    while True:
        intervals = rng.choice([3, 4, 5, 7], (batch, 3))
        steps = np.tile(intervals, length // 3 + 1)[:, :length]
        notes = (rng.integers(0, events, (batch, 1)) + steps.cumsum(1)) % events
        line = np.concatenate([notes[:, :1], notes], axis=1)
        yield line[:, :-1].copy(), line[:, 1:, None].copy()


def skewed(scores):
    """Products with distances (B, h, T, T), moved so that column j of row i is for i - j."""
    batch, heads, length, _ = scores.shape
    h = F.pad(scores, (0, 0, 0, 0, 0, 0, 1, 0))
    h = F.reshape(h, (batch, heads, length + 1, length))
    return h[:, :, 1:]


class RelativeAttention(nn.Module):
    def __init__(self, heads, longest):
        self.heads, self.longest = heads, longest

    def call(self, x, mask):
        batch, length, width = x.shape
        h = PF.affine(x, 3 * width, base_axis=2, name="qkv")
        h = F.reshape(h, (batch, length, 3, self.heads, width // self.heads))
        q, k, v = F.split(F.transpose(h, (2, 0, 3, 1, 4)), axis=0)  # each (B, h, T, n / h)
        distances = PF.get_parameter_or_create("distances", (1, 1, self.longest, q.shape[3]))
        distances = F.broadcast(distances[:, :, self.longest - length :], k.shape)
        scores = F.batch_matmul(q, k, transpose_b=True)
        scores = scores + skewed(F.batch_matmul(q, distances, transpose_b=True))
        weights = F.softmax(scores * q.shape[3] ** -0.5 + mask, axis=3)
        y = F.transpose(F.batch_matmul(weights, v), (0, 2, 1, 3))
        return PF.affine(F.reshape(y, (batch, length, width)), width, base_axis=2), weights


class DecoderLayer(nn.Module):
    def __init__(self, heads, longest):
        self.attention = RelativeAttention(heads, longest)

    def call(self, x, mask):
        p = 0.1 if self.training else 0.0
        y, weights = self.attention(x, mask)
        x = PF.layer_normalization(x + F.dropout(y, p), batch_axis=(0, 1), name="attended")
        h = F.relu(PF.affine(x, x.shape[2] * 2, base_axis=2, name="up"))
        h = F.dropout(PF.affine(h, x.shape[2], base_axis=2, name="down"), p)
        return PF.layer_normalization(x + h, batch_axis=(0, 1), name="fed"), weights


class MusicTransformerDecoder(nn.Module):
    """The model, and the loop body that trains it."""

    def __init__(self, events, width, layers, heads, longest, rate):
        self.events, self.width = events, width
        for i in range(layers):
            setattr(self, f"layer{i}", DecoderLayer(heads, longest))
        self.loss_value, self.history, self.looks = None, [], []
        self.call(nn.Variable((1, longest)))  # makes the parameters
        self.solver = S.Adam(rate, beta2=0.98)
        self.solver.set_parameters(self.get_parameters())

    def call(self, x):
        length = x.shape[1]
        h = PF.embed(x, self.events, self.width) * self.width**0.5
        mask = F.trilu(F.constant(-1e9, (1, 1, length, length)), k=1)
        weights = []
        for layer in self.submodules.values():
            h, w = layer(h, mask)
            weights.append(w)
        return PF.affine(h, self.events, base_axis=2, name="scores"), weights

    def _train_step(self, x, following):
        scores, weights = self(x)
        self.loss_value = F.softmax_cross_entropy(scores, following, axis=2)
        self.solver.zero_grad()
        F.mean(self.loss_value).backward()
        self.solver.update()
        return weights

    def train_on_batch(self, x, following):
        x, following = map(nn.Variable.from_numpy_array, (x, following))
        weights = self._train_step(x, following)
        loss = F.mean(self.loss_value).unlinked()
        self.history.append(loss)
        if len(self.history) % KEEP_EVERY == 0:
            self.looks.append(weights[-1].unlinked())
        return loss


class Program:
    unit = "events"

    def __init__(self, size):
        self.batch, self.length, self.events, *sizes, rate = SIZES[size]
        self.items = self.batch * self.length
        self.model = MusicTransformerDecoder(self.events, *sizes, self.length, rate)
        self.step = self.model.train_on_batch

    def batches(self, rng):
        return arpeggios(rng, self.batch, self.length, self.events)


if __name__ == "__main__":
    main(Program)
