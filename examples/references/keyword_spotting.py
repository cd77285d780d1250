# SPDX-License-Identifier: Apache-2.0
"""Keyword spotting: which of ten words was spoken, by any voice, in noise.

The network takes samples: a spectrogram in bands of mels, then convolutions over time whose
channels are those bands. Words are made of formants, and some of the same sounds in another order.
Beside: logistic regression from the bands' mean and spread over time. Source: Choi et al., Temporal
Convolution for Real-Time Keyword Spotting, arXiv:1904.03814. Expected:

    {"accuracy": 0.9933, "accuracy of the mean spectrum": 0.5, "seconds": 40}
"""

import numpy as np
from common import answers, cross_entropy, fit, main, some
from speech import WORDS, log_mel, words

import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.metrics import accuracy


def network(x, test=True):
    """Scores of words (B, 10) of sounds (B, L)."""

    def layer(h, channels, stride, name):
        h = PF.convolution(
            h, channels, (9,), pad=(4,), stride=(stride,), with_bias=False, name=name
        )
        return F.relu(PF.batch_normalization(h, batch_stat=not test, name=name))

    h = layer(log_mel(x), 32, 1, "first")
    for i, channels in enumerate((32, 48)):
        skipped = PF.convolution(h, channels, (1,), stride=(2,), name=f"skip{i}")
        h = layer(layer(h, channels, 2, f"{i}/in"), channels, 1, f"{i}/out") + skipped
    return PF.affine(F.mean(h, axis=2), len(WORDS), name="scores")


def run(steps=300):
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    (x, t), (held_out, truth) = words(1500, seed=0), words(300, seed=1)
    fit(lambda v, c: cross_entropy(network(v, test=False), c), some(32, x, t), steps)

    def flat(sounds):
        h = answers(log_mel, sounds)
        return np.concatenate([h.mean(2), h.std(2)], 1)

    scale = StandardScaler().fit(flat(x))
    linear = LogisticRegression(max_iter=1000).fit(scale.transform(flat(x)), t)
    return {
        "accuracy": accuracy(truth, answers(network, held_out)),
        "accuracy of the mean spectrum": linear.score(scale.transform(flat(held_out)), truth),
    }


if __name__ == "__main__":
    main(run)
