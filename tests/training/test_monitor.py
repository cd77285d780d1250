# SPDX-License-Identifier: Apache-2.0
"""Monitors, against files that NNabla 1.39 wrote for the same calls."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from nnl import monitor as M

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def monitor(tmp_path: Path) -> M.Monitor:
    return M.Monitor(str(tmp_path / "deep" / "log"))


def read(monitor: M.Monitor, name: str) -> str:
    return (Path(monitor.save_path) / name).read_text(encoding="utf-8")


def pixels(monitor: M.Monitor, name: str) -> np.ndarray:
    with Image.open(Path(monitor.save_path) / name) as picture:
        return np.array(picture)


def test_monitor_makes_its_folder(monitor: M.Monitor) -> None:
    assert Path(monitor.save_path).is_dir()


def test_series_writes_the_mean_of_each_interval(monitor: M.Monitor) -> None:
    series = M.MonitorSeries("Train loss", monitor, interval=3, verbose=False)
    for i in range(8):
        series.add(i, np.float32(i * 0.1))
    series.add(8, 1.5)
    assert read(monitor, "Train-loss.series.txt") == "2 0.1\n5 0.4\n8 0.933333\n"


def test_series_counts_from_the_last_line_not_from_multiples(monitor: M.Monitor) -> None:
    series = M.MonitorSeries("s", monitor, interval=3, verbose=False)
    for i in (5, 6, 7, 8, 9, 10, 20, 21):
        series.add(i, i + 1234567.891)
    assert read(monitor, "s.series.txt") == "5 1.23457e+06\n8 1.23457e+06\n20 1.23458e+06\n"


def test_series_starts_its_file_anew(monitor: M.Monitor) -> None:
    M.MonitorSeries("s", monitor, verbose=False).add(0, 1)
    M.MonitorSeries("s", monitor, verbose=False)
    assert read(monitor, "s.series.txt") == ""


def test_series_takes_one_element_arrays_and_variables(monitor: M.Monitor) -> None:
    class Variable:
        d = np.array([[3.0]])

    series = M.MonitorSeries("s", monitor, verbose=False)
    series.add(0, np.array([1.0]))
    series.add(1, Variable())
    assert read(monitor, "s.series.txt") == "0 1\n1 3\n"


def test_series_refuses_more_than_one_number(monitor: M.Monitor) -> None:
    series = M.MonitorSeries("loss", monitor)
    with pytest.raises(ValueError, match=r"MonitorSeries.add: loss got 2 values of the shape \(2,"):
        series.add(0, np.zeros(2))
    assert series.buf == []


def test_series_logs_without_a_monitor(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("nnl").addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.INFO, logger="nnl"):
            series = M.MonitorSeries("loss", interval=2)
            series.add(0, 0)
            series.add(1, 1)
    finally:
        logging.getLogger("nnl").removeHandler(caplog.handler)
    assert "iter=1 {loss}=0.5" in caplog.messages


def test_time_elapsed_writes_interval_and_total(monitor: M.Monitor) -> None:
    timer = M.MonitorTimeElapsed("time", monitor, interval=2, verbose=False)
    for i in range(4):
        timer.add(i)
    lines = [line.split() for line in read(monitor, "time.timer.txt").splitlines()]
    assert [(line[0], line[2]) for line in lines] == [("1", "2"), ("3", "2")]
    assert float(lines[1][1]) + float(lines[0][3]) == pytest.approx(float(lines[1][3]))


def test_image_saves_iteration_0_and_the_end_of_each_interval(monitor: M.Monitor) -> None:
    image = M.MonitorImage("img a", monitor, interval=3, num_images=2, verbose=False)
    for i in range(7):
        image.add(i, np.random.default_rng(0).random((3, 3, 4, 5)))
    names = sorted(p.name for p in (Path(monitor.save_path) / "img-a").iterdir())
    assert names == [f"{i:06d}-{n:03d}.png" for i in (0, 2, 5) for n in (0, 1)]


def test_image_stretches_the_batch_to_the_full_range(monitor: M.Monitor) -> None:
    image = M.MonitorImage("i", monitor, interval=1, verbose=False)
    image.add(0, np.arange(12, dtype=np.uint8).reshape(1, 1, 3, 4) * 20)
    expected = [[0, 23, 46, 69], [92, 115, 139, 162], [185, 208, 231, 255]]
    assert pixels(monitor, "i/000000-000.png").tolist() == expected


def test_constant_image_is_black(monitor: M.Monitor) -> None:
    image = M.MonitorImage("i", monitor, interval=1, verbose=False)
    image.add(0, np.full((1, 1, 2, 2), 3.0))
    assert pixels(monitor, "i/000000-000.png").max() == 0


@pytest.mark.parametrize(("channels", "shape"), [(1, (4, 5)), (2, (4, 5, 3)), (5, (4, 5, 3))])
def test_image_channels(monitor: M.Monitor, channels: int, shape: tuple[int, ...]) -> None:
    image = M.MonitorImage("i", monitor, 1, False, normalize_method=lambda x: np.clip(x, 0, 1))
    image.add(0, np.full((1, channels, 4, 5), 0.5))
    saved = pixels(monitor, "i/000000-000.png")
    assert saved.shape == shape
    if channels == 2:
        assert saved[0, 0].tolist() == [127, 127, 255]


def test_image_refuses_other_ranks(monitor: M.Monitor) -> None:
    image = M.MonitorImage("i", monitor)
    with pytest.raises(ValueError, match=r"MonitorImage.add: i got the shape \(3, 3\), \(samples"):
        image.add(0, np.zeros((3, 3)))


def test_tile_is_one_picture_with_black_borders(monitor: M.Monitor) -> None:
    tile = M.MonitorImageTile("t", monitor, 1, False, normalize_method=lambda x: x)
    tile.add(0, np.ones((3, 3, 4, 5)))
    saved = pixels(monitor, "t/000000.png")
    assert saved.shape == (10, 12, 3)
    assert saved[:4, :5].min() == 255
    assert saved[4].max() == 0
    assert saved[5:, 6:].max() == 0  # there is no fourth image


def test_tile_images_goes_row_by_row() -> None:
    tiles = M.tile_images(np.arange(1, 9.0).reshape(2, 2, 2, 1), padsize=2, padval=9)
    assert tiles[:4, :, 0].tolist() == [
        [1, 9, 9, 5, 9, 9],
        [2, 9, 9, 6, 9, 9],
        [9, 9, 9, 9, 9, 9],
        [9, 9, 9, 9, 9, 9],
    ]
    assert tiles.shape == (8, 6, 2)


def test_tile_images_refuses_other_ranks() -> None:
    with pytest.raises(ValueError, match=r"tile_images: data has the shape \(2, 2\)"):
        M.tile_images(np.zeros((2, 2)))


def test_plots_read_back_what_was_written(monitor: M.Monitor) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    series = M.MonitorSeries("s", monitor, verbose=False)
    timer = M.MonitorTimeElapsed("t", monitor, interval=1, verbose=False)
    for i in range(3):
        series.add(i, i * 2)
        timer.add(i)
    (line,) = M.plot_series(str(Path(monitor.save_path) / "s.series.txt"), {"label": "x"})
    assert line.get_xydata().tolist() == [[0, 0], [1, 2], [2, 4]]
    assert line.get_label() == "x"
    name = str(Path(monitor.save_path) / "t.timer.txt")
    (seconds,), (minutes,) = M.plot_time_elapsed(name), M.plot_time_elapsed(name, unit="m")
    np.testing.assert_allclose(seconds.get_ydata(), minutes.get_ydata() * 60)
    (total,) = M.plot_time_elapsed(name, elapsed=True)  # what NNabla calls elapsed
    np.testing.assert_allclose(total.get_ydata(), np.cumsum(seconds.get_ydata()), rtol=1e-3)
    with pytest.raises(ValueError, match="plot_time_elapsed: unit='y' is not one of s, m, h, d"):
        M.plot_time_elapsed(name, unit="y")
    matplotlib.pyplot.close("all")
