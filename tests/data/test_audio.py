# SPDX-License-Identifier: Apache-2.0
"""Sound files."""

from __future__ import annotations

import io
import wave

import numpy as np
import pytest

import nnl.utils.audio_utils as audio


def write(path: object, samples: np.ndarray, rate: int = 8000) -> None:
    with wave.open(path, "wb") as f:
        f.setparams((samples.shape[1], samples.dtype.itemsize, rate, 0, "NONE", ""))
        f.writeframes(samples.tobytes())


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32])
@pytest.mark.parametrize("channels", [1, 2])
def test_what_was_saved_is_read(tmp_path, dtype: type, channels: int) -> None:
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(0)
    x = rng.integers(limits.min, limits.max, (20, channels), dtype, endpoint=True)
    name = str(tmp_path / "new" / "x.wav")
    audio.ausave(name, x, frame_rate=8000)
    np.testing.assert_array_equal(audio.auread(name), x)
    np.testing.assert_array_equal(audio.auread(name, channel_first=True), x.T)
    with wave.open(name) as f:
        assert (f.getframerate(), f.getnchannels()) == (8000, channels)
        assert f.readframes(99) == x.tobytes()
    audio.ausave(name, x.T, channel_first=True)
    np.testing.assert_array_equal(audio.auload(name), x)


def test_signed_bytes_are_saved_as_the_format_counts_them(tmp_path) -> None:
    name = str(tmp_path / "x.wav")
    audio.auwrite(name, np.array([[-128], [0], [127]], np.int8))
    assert audio.auread(name).ravel().tolist() == [0, 128, 255]


def test_raw_samples_and_open_files() -> None:
    x = np.array([[1, -2], [300, 4]], "<i2")
    file = io.BytesIO()
    write(file, x)
    np.testing.assert_array_equal(audio.auread(io.BytesIO(file.getvalue())), x)
    raw = io.BytesIO(x.tobytes())
    raw.name = "x.raw"
    described = {"sample_width": 2, "channels": 2, "frame_rate": 8000}
    np.testing.assert_array_equal(audio.auread(raw, raw_format_param=described), x)


def test_linear_resampling_is_that_of_pydub() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-30000, 30000, (50, 1)).astype(np.int16)
    # audioop.ratecv, written out: read samples until the place of the output has been passed
    n = 20
    rate, out, d, i, previous, current = int(48000 * n / 50 + 1), [], 0, 0, 0, 0
    g = np.gcd(rate, 48000)
    fast, slow = 48000 // g, rate // g
    d = -slow
    while len(out) < n:
        while d < 0:
            previous, current = current, int(x[i, 0]) << 16
            i, d = i + 1, d + slow
        while d >= 0 and len(out) < n:
            out.append(int((previous * d + current * (slow - d)) / slow) >> 16)
            d -= fast
    assert audio.auresize(x, (n, 1)).ravel().tolist() == out


def test_channels_are_copied_or_averaged() -> None:
    x = np.array([[4, 7], [-3, -4]], np.int16)
    assert audio.auresize(x, (2, 1)).tolist() == [[5], [-4]]
    assert audio.auresize(x[:, :1], (2, 2)).tolist() == [[4, 4], [-3, -3]]
    assert audio.auresize(x, (7, 2)).shape == (7, 2)
    assert audio.auresize(x.T.astype(np.float32), (2, 1), channel_first=True).tolist() == [
        [5.5],
        [-3.5],
    ]


def test_scaling_to_a_range() -> None:
    x = np.array([[-0.5], [0.0], [1.5]])
    assert audio.minmax_auto_scale(x, np.uint8).ravel().tolist() == [0, 63, 255]
    assert audio.minmax_auto_scale(x, np.int16).ravel().tolist() == [-32768, -16384, 32767]
    assert audio.minmax_auto_scale(np.ones((2, 1)), np.uint8).ravel().tolist() == [255, 255]


def test_backends_are_chosen_by_name() -> None:
    before = audio.get_backend()
    audio.set_backend("pydub")
    assert audio.get_backend() == "pydub" and audio.get_backend() in audio.get_available_backends()
    audio.set_backend(before)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: audio.set_backend("sox"), "backend is 'sox', wanted one of"),
        (lambda: audio.auread("x.mp3"), "x.mp3 is .mp3, wanted .wav or .raw"),
        (lambda: audio.auread("x.raw"), "raw_format_param must give sample_width"),
        (
            lambda: audio.auread(
                "x.raw", raw_format_param={"sample_width": 3, "channels": 1, "frame_rate": 1}
            ),
            "sample_width is 3, wanted 1, 2 or 4 bytes",
        ),
        (lambda: audio.ausave("x.mp3", np.zeros((2, 1), np.int16)), "wanted a name that ends"),
        (lambda: audio.ausave("x.wav", np.zeros((2, 1))), "audio_arr is float64, wanted integers"),
        (lambda: audio.ausave("x.wav", np.zeros(2)), r"audio_arr is \(2,\), wanted an array"),
        (lambda: audio.auresize(np.zeros((2, 1)), 5), "size is 5, wanted"),
        (lambda: audio.auresize(np.zeros((2, 3)), (2, 2)), "has 3 channels, and size wants 2"),
        (lambda: audio.minmax_auto_scale(np.ones((1, 1)), np.int64), "at most 4 bytes"),
        (lambda: audio.minmax_auto_scale([1], np.int16), "audio_arr is list, wanted numpy"),
    ],
)
def test_errors_say_what_was_wanted(call, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call()
