# SPDX-License-Identifier: Apache-2.0
"""Speech separation as Conv-TasNet does: two voices that speak at once become two sounds.

Short pieces of sound become features by a convolution, dilated convolutions give a mask for each
voice, and a transposed one gives sounds back. Which result is whose does not matter in training.
Voices are drawn, by formants. Beside: the mixture itself, and masks of a low and a high band.
Source: Luo and Mesgarani, arXiv:1809.07454. Expected (SI-SNR in dB of held out voices):

    {"SI-SNR": 6.3337, "mixture": -0.0196, "bands": -2.7286, "seconds": 472}
"""

import numpy as np
from common import answers, fit, main, some
from speech import RATE, SONORANTS, VOWELS, spoken

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF

LENGTH, FILTERS, WIDTH, WINDOW = 4000, 64, 32, 32


def mixtures(count, seed):
    """Sounds of two voices at once (count, LENGTH), and of each (count, 2, LENGTH)."""
    rng, found = np.random.default_rng(seed), []
    sounds = [*VOWELS, *SONORANTS]
    for _ in range(count):
        voices = []
        for high in (False, True):
            y = spoken(rng, "".join(rng.choice(sounds, 7)), high)
            voices.append(np.resize(y, LENGTH) * 10 ** (rng.uniform(-2.5, 2.5) / 20))
        found.append(voices)
    found = np.array(found, np.float32) * 0.1
    return found.sum(1), found


def network(x):
    """(B, LENGTH) -> (B, 2, LENGTH)."""
    b = x.shape[0]
    h = F.reshape(x, (b, 1, LENGTH))
    features = F.relu(PF.convolution(h, FILTERS, (WINDOW,), stride=(WINDOW // 2,), name="in"))
    h = PF.convolution(PF.layer_normalization(features, name="in"), WIDTH, (1,), name="narrow")
    for i in range(6):
        with nn.parameter_scope(f"block{i}"):
            far = 2 ** (i % 6)
            y = F.relu(PF.convolution(h, 2 * WIDTH, (1,), name="wide"))
            y = PF.layer_normalization(y, name="wide")
            y = PF.convolution(
                y, 2 * WIDTH, (3,), pad=(far,), dilation=(far,), group=2 * WIDTH, name="time"
            )
            h = h + PF.convolution(F.relu(y), WIDTH, (1,), name="back")
    mask = F.sigmoid(PF.convolution(F.relu(h), 2 * FILTERS, (1,), name="masks"))
    kept = F.reshape(mask, (b, 2, FILTERS, -1)) * F.reshape(features, (b, 1, FILTERS, -1))
    y = PF.deconvolution(
        F.reshape(kept, (2 * b, FILTERS, -1)), 1, (WINDOW,), stride=(WINDOW // 2,), name="out"
    )
    return F.reshape(y, (b, 2, LENGTH))


def si_snr(said, truth):
    """Decibels of what is along the truth over the rest, whatever the scale, (..., LENGTH)."""
    share = F.sum(said * truth, axis=-1, keepdims=True)
    along = truth * share / (F.sum(truth**2, axis=-1, keepdims=True) + 1e-6)
    rest = F.sum((said - along) ** 2, axis=-1) + 1e-6
    return 10 / np.log(10) * F.log(F.sum(along**2, axis=-1) / rest + 1e-6)


def best(said, truth):
    """SI-SNR of the better of both orders, (B,)."""
    straight = F.mean(si_snr(said, truth), axis=1)
    return F.maximum2(straight, F.mean(si_snr(F.flip(said, axes=(1,)), truth), axis=1))


def bands(x):
    """The mixture below and above a frequency."""
    spectrum, f = np.fft.rfft(x), np.fft.rfftfreq(LENGTH, 1 / RATE)
    return np.stack([np.fft.irfft(spectrum * m, LENGTH) for m in (f < 400, f >= 400)], 1)


def run(steps=1200):
    known, (x, truth) = mixtures(600, 0), mixtures(60, 1)
    fit(lambda v, t: -F.mean(best(network(v), t)), some(8, *known), steps, rate=3e-3)

    def score(said):
        return answers(best, said.astype(np.float32), truth).mean()

    return {
        "SI-SNR": score(answers(network, x)),
        "mixture": score(np.repeat(x[:, None], 2, 1)), "bands": score(bands(x)),
    }  # fmt: skip


if __name__ == "__main__":
    main(run)
