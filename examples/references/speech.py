# SPDX-License-Identifier: Apache-2.0
"""Spoken words without a recording: formants of vowels, noise of consonants, any voice.

A voice has a pitch and a length of its vocal tract, by which all formants are divided; vowels have
those of Peterson and Barney, Control Methods Used in a Study of the Vowels, 1952.
"""

from __future__ import annotations

from functools import cache

import numpy as np

import nnl as nn
import nnl.functions as F

RATE = 8000  # samples a second
VOWELS = {"i": (270, 2290, 3010), "e": (530, 1840, 2480), "a": (730, 1090, 2440),
          "o": (570, 840, 2410), "u": (300, 870, 2240)}  # fmt: skip
SONORANTS = {"n": (250, 1500, 2500), "l": (360, 1300, 2600), "r": (400, 1100, 1500)}  # quieter
NOISES = {"s": (2800, 3900), "f": (1200, 3900), "t": (2200, 3800), "p": (300, 1400),
          "k": (1300, 2200)}  # fmt: skip
WORDS = (
    "stop",
    "spot",
    "post",
    "ten",
    "net",
    "left",
    "felt",
    "no",
    "on",
    "son",
)  # as they are said


def band(rng, n, low, high):
    """Noise between two frequencies."""
    spectrum = np.fft.rfft(rng.normal(size=n))
    f = np.fft.rfftfreq(n, 1 / RATE)
    y = np.fft.irfft(spectrum * ((f > low) & (f < high)), n)
    return y / (y.std() + 1e-6)


def spoken(rng, phones, high_voice=None):
    """The samples of phones in a random voice, of a mean square of 1; high or low, or either."""
    high = rng.random() < 0.5 if high_voice is None else high_voice
    pitch = rng.uniform(160, 240) if high else rng.uniform(80, 130)
    tract = rng.uniform(0.8, 0.95) if high else rng.uniform(0.95, 1.15)
    lengths = [int(RATE * rng.uniform(0.1, 0.17) * (1 if p in VOWELS else 0.6)) for p in phones]
    loud, noise = np.zeros(sum(lengths)), np.zeros(sum(lengths))
    formants, at = np.zeros((3, sum(lengths))), 0
    for p, n in zip(phones, lengths, strict=True):
        part = slice(at, at + n)
        at += n
        formants[:, part] = np.array(VOWELS.get(p) or SONORANTS.get(p) or (500, 1500, 2500))[
            :, None
        ]
        loud[part] = 1.0 if p in VOWELS else 0.4 if p in SONORANTS else 0.0
        if p in NOISES:
            sound = 0.35 * band(rng, n, *NOISES[p])
            sound[: n // 2] *= p in "sf"  # the others are silent first
            noise[part] = sound
    glide = np.ones(320) / 320  # 40 ms from one to the next
    formants = np.array(
        [np.convolve(np.pad(f, 160, "edge"), glide, "same")[160:-160] for f in formants]
    )
    loud = np.convolve(loud, glide, "same")
    drift = np.cumsum(rng.normal(size=len(loud))) * 2e-3
    phase = np.cumsum(2 * np.pi * pitch * (1 + 0.05 * np.sin(drift)) / RATE)
    k = np.arange(1, int(3900 / pitch))[:, None]
    near = [
        1 / (1 + ((k * pitch - f / tract) / w) ** 2)
        for f, w in zip(formants, (60, 90, 150), strict=True)
    ]
    y = ((near[0] + 0.6 * near[1] + 0.3 * near[2]) * np.sin(k * phase)).sum(0)
    y = y * loud / y.std() + noise
    return y / np.sqrt(np.mean(y**2))


def word(rng, name, length=RATE):
    """A word somewhere in silence or noise, (length,)."""
    y = spoken(rng, name)[:length]
    sound = 10 ** rng.uniform(-1, 0) * rng.normal(size=length)  # 20 to 0 dB below
    begin = rng.integers(length - len(y) + 1)
    sound[begin : begin + len(y)] += y
    return (0.1 * sound).astype(np.float32)


@cache
def words(count, seed):
    """Sounds (count, RATE) and which of WORDS each is."""
    rng = np.random.default_rng(seed)
    t = rng.integers(len(WORDS), size=count)
    return np.stack([word(rng, WORDS[c]) for c in t]), t


@cache
def mel(bands, fft_size):
    """(bands, fft_size / 2 + 1): triangles, alike on the scale of mels."""
    at = np.linspace(0, 2595 * np.log10(1 + RATE / 2 / 700), bands + 2)
    at = 700 * (10 ** (at / 2595) - 1)
    f = np.linspace(0, RATE / 2, fft_size // 2 + 1)
    up = (f - at[:-2, None]) / (at[1:-1] - at[:-2])[:, None]
    down = (at[2:, None] - f) / (at[2:] - at[1:-1])[:, None]
    return np.maximum(np.minimum(up, down), 0).astype(np.float32)


def log_mel(x, bands=24, fft_size=256, stride=128):
    """Sounds (B, L) as logarithms of the energy of bands, (B, bands, L / stride + 1)."""
    re, im = F.stft(x, fft_size, stride, fft_size)
    table = nn.Variable.from_numpy_array(mel(bands, fft_size)[None])
    energy = F.batch_matmul(F.tile(table, (x.shape[0], 1, 1)), re**2 + im**2)
    return F.log(energy + 1e-3)
