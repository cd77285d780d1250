# SPDX-License-Identifier: Apache-2.0
"""Images and other files; the resized values are those of NNabla 1.39 with Pillow."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import numpy as np
import pytest

from nnl.utils import data_source_loader as loader
from nnl.utils import image_utils

Image = pytest.importorskip("PIL.Image")

RGB = np.array([[[255, 228, 34], [121, 243, 189]], [[6, 131, 8], [0, 47, 211]]], np.uint8)


@pytest.fixture
def png(tmp_path: Path) -> str:
    Image.fromarray(RGB).save(tmp_path / "rgb.png")
    return str(tmp_path / "rgb.png")


@pytest.fixture
def grey(tmp_path: Path) -> str:
    Image.fromarray(RGB[:, :, 0]).save(tmp_path / "grey.png")
    return str(tmp_path / "grey.png")


def test_imread_keeps_the_files_channels(png: str, grey: str) -> None:
    assert image_utils.imread(png).tolist() == RGB.tolist()
    assert image_utils.imread(grey).tolist() == RGB[:, :, 0].tolist()


def test_imread_channel_first(png: str) -> None:
    assert image_utils.imread(png, channel_first=True).tolist() == RGB.transpose(2, 0, 1).tolist()


def test_imread_converts_channels(png: str, grey: str) -> None:
    assert image_utils.imread(png, num_channels=4)[:, :, 3].min() == 255
    assert image_utils.imread(grey, num_channels=3).shape == (2, 2, 3)
    weights = [0.299, 0.587, 0.114]  # ITU-R 601
    np.testing.assert_allclose(image_utils.imread(png, grayscale=True), RGB @ weights, atol=1)
    assert image_utils.imread(png, grayscale=True, num_channels=0).shape == (2, 2)
    assert image_utils.imread(png, grayscale=True, num_channels=1).shape == (2, 2, 1)


def test_imread_size_is_width_then_height(png: str) -> None:
    assert image_utils.imread(png, size=(5, 3)).shape == (3, 5, 3)


def test_imread_refuses_channels_that_do_not_go_together(png: str) -> None:
    with pytest.raises(ValueError, match="imread: num_channels=2 is not one of"):
        image_utils.imread(png, num_channels=2)
    with pytest.raises(ValueError, match="imread: num_channels=1 needs grayscale=True"):
        image_utils.imread(png, num_channels=1)


def test_16_bits_survive_a_round_trip(tmp_path: Path) -> None:
    path = str(tmp_path / "16.png")
    img = np.array([[0, 257], [65535, 1000]], np.uint16)
    image_utils.imsave(path, img)
    assert image_utils.imread(path, as_uint16=True).tolist() == img.tolist()
    assert image_utils.imread(path).tolist() == (img >> 8).tolist()


def test_8_bits_read_as_16_fill_the_range(png: str) -> None:
    assert (image_utils.imread(png, as_uint16=True) == RGB.astype(int) * 257).all()


@pytest.mark.parametrize("scale", [1, 255])
@pytest.mark.parametrize("channel_first", [False, True])
def test_imsave_round_trip(tmp_path: Path, scale: int, channel_first: bool) -> None:
    path = str(tmp_path / "out.png")
    img = RGB if scale == 1 else RGB / 255
    image_utils.imsave(path, img.transpose(2, 0, 1) if channel_first else img, channel_first)
    assert image_utils.imread(path).tolist() == RGB.tolist()
    assert [p.name for p in tmp_path.iterdir()] == ["out.png"]


@pytest.mark.parametrize(
    ("img", "options", "error", "message"),
    [
        (RGB * 2.0, {}, ValueError, r"img is float64 from 0.0 to 510.0, values in \[0, 1\]"),
        (RGB / 255, {"auto_scale": False}, ValueError, "img is float64; auto_scale=True is"),
        (np.zeros((2, 2, 6)), {}, ValueError, "img has 6 channels, 1 to 4 wanted"),
        (np.zeros(3), {}, ValueError, r"img has the shape \(3,\), 2 or 3 axes"),
        (RGB, {"as_uint16": True}, NotImplementedError, "16 bits for 3 channels; save them as"),
    ],
)
def test_imsave_refuses(
    tmp_path: Path, img: np.ndarray, options: dict, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match="imsave: " + message):
        image_utils.imsave(str(tmp_path / "out.png"), img, **options)
    assert list(tmp_path.iterdir()) == []


def test_imsave_needs_an_image_extension(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no extension of an image format"):
        image_utils.imsave(str(tmp_path / "out.xyz"), RGB)


@pytest.mark.parametrize("interpolate", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_imresize_of_a_constant_is_constant(interpolate: str) -> None:
    img = np.full((4, 6, 3), 0.25, np.float32)
    resized = image_utils.imresize(img, (3, 2), interpolate)
    assert (resized.dtype, resized.shape) == (np.float32, (2, 3, 3))
    np.testing.assert_allclose(resized, 0.25, rtol=1e-6)


def test_imresize_of_uint16_does_not_wrap_around() -> None:
    edge = np.repeat([[0, 0, 65535, 65535]], 4, axis=0).astype(np.uint16)
    resized = image_utils.imresize(edge, (9, 4), "lanczos").astype(int)
    assert (np.diff(resized[0][2:7]) >= 0).all()


def test_imresize_channel_first() -> None:
    first = image_utils.imresize(RGB.transpose(2, 0, 1), (5, 3), channel_first=True)
    assert first.tolist() == image_utils.imresize(RGB, (5, 3)).transpose(2, 0, 1).tolist()


def test_imresize_refuses() -> None:
    with pytest.raises(ValueError, match="imresize: interpolate='area' is not one of"):
        image_utils.imresize(RGB, (2, 2), "area")
    with pytest.raises(ValueError, match=r"imresize: size=\(2,\) is not \(width, height\)"):
        image_utils.imresize(RGB, (2,))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"imresize: img has the shape \(3,\)"):
        image_utils.imresize(np.zeros(3), (2, 2))


def test_rescaling_truncates_as_nnabla_does() -> None:
    stretched = image_utils.minmax_auto_scale(np.array([0.0, 0.25, 1.0]), False)
    assert (stretched.dtype, stretched.tolist()) == (np.uint8, [0, 63, 255])
    assert image_utils.minmax_auto_scale(np.array([0.0, 5, 10]), True).tolist() == [0, 32767, 65535]
    with pytest.raises(ValueError, match="rescale_pixel_intensity: the input range is empty"):
        image_utils.minmax_auto_scale(np.ones(3), False)


def test_other_image_backends_are_refused() -> None:
    assert image_utils.get_backend() in image_utils.get_available_backends()
    with pytest.raises(NotImplementedError, match="set_backend: 'Cv2Backend' is not here"):
        image_utils.set_backend("Cv2Backend")


def test_load_image_is_channel_first(png: str, grey: str) -> None:
    load = loader.load(".png")
    assert load(png).tolist() == RGB.transpose(2, 0, 1).tolist()
    assert load(grey).shape == (1, 2, 2)
    assert load(png, shape=(3, 4, 5)).shape == (3, 4, 5)
    normalized = load(png, normalize=True)
    assert (normalized.dtype, normalized[0, 1, 0]) == (np.float64, 6 / 255)


def test_load_image_refuses_another_shape(png: str) -> None:
    with pytest.raises(ValueError, match=r"load_image: shape=\(4, 6\) is not \(channels, height"):
        loader.load_image(png, shape=(4, 6))
    with pytest.raises(ValueError, match="load_image: the image has 3 channels"):
        loader.load_image(png, shape=(1, 4, 6))


def test_load_npy_reshapes_and_does_not_unpickle(tmp_path: Path) -> None:
    path = str(tmp_path / "v.npy")
    np.save(path, np.arange(6.0).reshape(2, 3))
    assert loader.load_npy(path, (3, 2)).shape == (3, 2)
    with pytest.raises(ValueError, match=r"load_npy: the file holds the shape \(2, 3\), which"):
        loader.load_npy(path, (4, 6))
    np.save(path, np.array([{}], object), allow_pickle=True)
    with pytest.raises(ValueError, match="array of object .*, wanted numbers"):
        loader.load_npy(path)


def test_load_csv_reads_numbers() -> None:
    assert loader.load_csv(io.BytesIO(b"1,2\n3,4.5\n")).tolist() == [[1, 2], [3, 4.5]]
    with pytest.raises(ValueError, match="load_csv: the rows of the file differ in length"):
        loader.load_csv(io.BytesIO(b"1,2\n3\n"))


@pytest.mark.parametrize(
    ("width", "raw", "expected"),
    [
        (1, b"\x00\x80\xff\x01", np.array([[0, 128], [255, 1]], np.uint8)),
        (2, b"\xfd\xff\x01\x00\x00\x80\xff\x7f", np.array([[-3, 1], [-32768, 32767]], np.int16)),
        (3, b"\xff\xff\xff\x01\x00\x00", np.array([[-256, 256]], np.int32)),
    ],
)
def test_load_wav_is_samples_by_channels(
    tmp_path: Path, width: int, raw: bytes, expected: np.ndarray
) -> None:
    path = str(tmp_path / "s.wav")
    with wave.open(path, "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(width)
        file.setframerate(8000)
        file.writeframes(raw)
    samples = loader.load(".wav")(path)
    assert samples.dtype == expected.dtype
    assert samples.tolist() == expected.tolist()


def test_unknown_extension_is_refused() -> None:
    with pytest.raises(
        ValueError, match="load: no loader for the extension '.xyz'; there are .bmp"
    ):
        loader.load(".xyz")


def test_file_reader_opens_beside_its_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    with loader.FileReader(str(tmp_path / "data.csv")).open("a.txt", textmode=True) as file:
        assert file.read() == "hello"
    assert loader.FileReader(str(tmp_path)).listdir() == ["a.txt"]
    with pytest.raises(NotImplementedError, match="s3 is not read; copy the data to a local"):
        loader.FileReader("s3://bucket/data.csv")
    with pytest.raises(NotImplementedError, match=r"FileReader: listdir\(\) works in local"):
        loader.FileReader("https://example.org/data.csv").listdir()


def test_file_extension_is_lower_case_and_ignores_queries() -> None:
    assert loader.get_file_extension("a/b.PNG") == ".png"
    assert loader.get_file_extension("https://example.org/y.png?q=1") == ".png"
