# SPDX-License-Identifier: Apache-2.0
"""Self-supervision of speech, as wav2vec 2.0: which sound was hidden, among others of its word.

Bands of mels stand for the first convolutions. Spans of the frames are hidden from a transformer,
whose answer at each hidden place has to be nearer to what was there than to other frames of the
same sound. No word's name is used until the end, where logistic regression from 100 labels reads
the mean and spread over time. Source: Baevski et al., arXiv:2006.11477. Expected (accuracy):

    {"accuracy": 0.6267, "from bands": 0.4133, "before": 0.5267, "seconds": 202}
"""

import numpy as np
from common import answers, fit, main
from speech import log_mel, words

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.metrics import accuracy
from nnl.models.generative.layers import attention, layer_norm, linear
from nnl.parametric_functions import get_parameter_or_create
from nnl.parametric_functions.initializer import NormalInitializer

WIDTH, FRAMES, LABELS, HEAT = 64, 32, 100, 0.1


def frames(x):
    """What is to be found again: (B, FRAMES, WIDTH) of bands (B, 24, 63)."""
    with nn.parameter_scope("frames"):
        h = PF.convolution(x, WIDTH, (5,), pad=(2,), stride=(2,), name="conv")
        return F.transpose(
            F.relu(PF.layer_normalization(h, batch_axis=(0, 2), name="norm")), (0, 2, 1)
        )


def context(h, hidden):
    """Frames with those that are hidden (B, FRAMES, 1) replaced, seen by a transformer."""
    instead = get_parameter_or_create("instead", (1, 1, WIDTH), NormalInitializer(0.1))
    h = h * (1 - hidden) + instead * hidden
    h = h + get_parameter_or_create("places", (1, FRAMES, WIDTH), NormalInitializer(0.1))
    for i in range(2):
        with nn.parameter_scope(f"layer{i}"):
            h = h + attention(layer_norm(h, "norm1"), 4, "attention")
            h = h + linear(F.gelu(linear(layer_norm(h, "norm2"), 128, "up")), WIDTH, "down")
    return h


def unit(h):
    return h / F.norm(h, p=2, axis=2, keepdims=True)


def loss_of(x, hidden):
    h, b = frames(x), x.shape[0]
    found = unit(linear(context(h, hidden), 32, "found"))
    scores = F.batch_matmul(found, unit(linear(h, 32, "wanted")), transpose_b=True) / HEAT
    right = nn.Variable.from_numpy_array(np.tile(np.arange(FRAMES), (b, 1))[:, :, None])
    each = F.softmax_cross_entropy(scores, right, axis=2)
    return F.sum(each * hidden) / F.sum(hidden)


def spans(n, rng):
    """Which frames are hidden: four spans of five of each sound."""
    begin = rng.integers(0, FRAMES - 4, (n, 4, 1))
    at = np.arange(FRAMES)
    return ((at >= begin) & (at < begin + 5)).any(1)[:, :, None].astype(np.float32)


def read(x):
    h = context(frames(x), nn.Variable.from_numpy_array(np.zeros((1, FRAMES, 1), np.float32)))
    return F.concatenate(
        F.mean(h, axis=1),
        F.mean((h - F.mean(h, axis=1, keepdims=True)) ** 2, axis=1) ** 0.5,
        axis=1,
    )


def probed(x, t, held_out, truth):
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    scale = StandardScaler().fit(x)
    known = LogisticRegression(max_iter=1000).fit(scale.transform(x[:LABELS]), t[:LABELS])
    return accuracy(truth, known.predict(scale.transform(held_out)))


def run(steps=800):
    (x, t), (held_out, truth) = words(1500, seed=0), words(300, seed=1)
    x, held_out = answers(log_mel, x), answers(log_mel, held_out)
    mean, spread = x.mean(), x.std()
    x, held_out = (x - mean) / spread, (held_out - mean) / spread

    def score():
        return probed(answers(read, x), t, answers(read, held_out), truth)

    before = score()

    def batch(rng):
        return [x[rng.integers(len(x), size=32)], spans(32, rng)]

    fit(loss_of, batch, steps, rate=1e-3)
    bands = [np.concatenate([v.mean(2), v.std(2)], 1) for v in (x, held_out)]
    return {
        "accuracy": score(),
        "from bands": probed(bands[0], t, bands[1], truth),
        "before": before,
    }


if __name__ == "__main__":
    main(run)
