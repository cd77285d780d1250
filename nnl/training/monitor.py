# SPDX-License-Identifier: Apache-2.0
"""Write numbers, times and images of a training run to files and to the log."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from nnl.data.image import imsave
from nnl.training.event_files import EventFile

__all__ = [
    "Monitor",
    "MonitorImage",
    "MonitorImageTile",
    "MonitorSeries",
    "MonitorTimeElapsed",
    "plot_series",
    "plot_time_elapsed",
    "tile_images",
]

Array = np.ndarray[Any, Any]
logger = logging.getLogger("nnl")


def _file_name(name: str) -> str:
    return name.replace(" ", "-")


def _values(var: Any) -> Array:
    """The values of a Variable (`.d`), an NdArray (`.data`) or an array."""
    if isinstance(var, np.ndarray):
        return var
    if hasattr(var, "d"):
        return np.asarray(var.d)
    return np.asarray(var.data if hasattr(var, "spec") else var)


class Monitor:
    """The folder that monitors write into, made if missing.

    Args:
        save_path: Name of the folder.
        tensorboard: Whether its monitors also write an event file there, for `tensorboard
            --logdir`: series, seconds per iteration, and images.
    Example:
        >>> from nnl.monitor import Monitor, MonitorSeries
        >>> series = MonitorSeries("loss", Monitor("ex_log"), interval=2, verbose=False)
        >>> for i in range(4):
        ...     series.add(i, 1 / (i + 1))
        >>> print(open("ex_log/loss.series.txt").read().split())
        ['1', '0.75', '3', '0.291667']
    """

    def __init__(self, save_path: str, tensorboard: bool = False) -> None:
        os.makedirs(save_path, exist_ok=True)
        self._save_path = save_path
        self.events = EventFile(save_path) if tensorboard else None

    @property
    def save_path(self) -> str:
        """Name of the folder."""
        return self._save_path


def _start_file(monitor: Monitor | None, name: str, extension: str) -> str | None:
    """Make an empty file for a monitor; None without a folder."""
    if monitor is None:
        return None
    path = os.path.join(monitor.save_path, _file_name(name) + extension)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8"):
        return path


def _events_of(monitor: Any) -> EventFile | None:
    """None also of a script's own class with a save_path."""
    return getattr(monitor, "events", None)


def _append(path: str | None, line: str) -> None:
    if path is not None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")


class MonitorSeries:
    """Write the mean of a value over every `interval` iterations.

    The file is `<name>.series.txt`, blanks in the name turned to "-", a line "index mean" each.

    Args:
        name: Name of the series.
        monitor: Where to write; None only logs.
        interval: Number of iterations per line.
        verbose: Whether to log each line.
    Example:
        >>> from nnl.monitor import Monitor, MonitorSeries
        >>> series = MonitorSeries("error", Monitor("ex_log"), interval=1)
        >>> series.add(1, 0.25)
    """

    def __init__(
        self,
        name: str,
        monitor: Monitor | None = None,
        interval: int = 1,
        verbose: bool = True,
    ) -> None:
        self.name = name
        self.interval = interval
        self.verbose = verbose
        self.flush_at = -1
        self.buf: list[Any] = []
        self._path = _start_file(monitor, name, ".series.txt")
        self._events = _events_of(monitor)

    def add(self, index: int, value: Any) -> None:
        """Add the value of an iteration.

        Args:
            index: Number of the iteration, growing from call to call.
            value: A number, or an array, NdArray or Variable with one element.
        Raises:
            ValueError: value has more than one element.
        """
        values = _values(value)
        if values.size != 1:
            raise ValueError(
                f"MonitorSeries.add: {self.name} got {values.size} values of the shape "
                f"{values.shape}, one number wanted"
            )
        self.buf.append(values.reshape(())[()])
        if index - self.flush_at < self.interval:
            return
        mean = float(np.mean(self.buf))
        if self.verbose:
            logger.info("iter=%s {%s}=%s", index, self.name, mean)
        _append(self._path, f"{index} {mean:g}")
        if self._events is not None:
            self._events.scalar(self.name, mean, index)
        self.flush_at = index
        self.buf.clear()


class MonitorTimeElapsed:
    """Write the time that every `interval` iterations take.

    The file is `<name>.timer.txt`, blanks in the name turned to "-", a line "index elapsed_s
    iterations total_s" each: seconds since the line before and since the start.

    Args:
        name: Name of the series.
        monitor: Where to write; None only logs.
        interval: Number of iterations per line.
        verbose: Whether to log each line.
    Example:
        >>> from nnl.monitor import Monitor, MonitorTimeElapsed
        >>> clock = MonitorTimeElapsed("time", Monitor("ex_log"), interval=10, verbose=False)
        >>> clock.add(0)
    """

    def __init__(
        self,
        name: str,
        monitor: Monitor | None = None,
        interval: int = 100,
        verbose: bool = True,
    ) -> None:
        self.name = name
        self.interval = interval
        self.verbose = verbose
        self.flush_at = -1
        self._path = _start_file(monitor, name, ".timer.txt")
        self._events = _events_of(monitor)
        self.start = self.lap = time.time()

    def add(self, index: int) -> None:
        """Say that an iteration has ended; its number grows from call to call."""
        iterations = index - self.flush_at
        if iterations < self.interval:
            return
        now = time.time()
        elapsed, total = now - self.lap, now - self.start
        if self.verbose:
            logger.info(
                "iter=%s {%s}=%s[sec/%siter] %s[sec]", index, self.name, elapsed, iterations, total
            )
        _append(self._path, f"{index} {elapsed} {iterations} {total}")
        if self._events is not None:
            self._events.scalar(self.name, elapsed / iterations, index)
        self.flush_at = index
        self.lap = now


class MonitorImage:
    """Save images of a batch at iteration 0 and at the end of every `interval` iterations.

    The files are `<name>/<index>-<number>.png`, with 6 and 3 digits, blanks in the name turned to
    "-". One channel is saved as grey, two as red and green with full blue, of more than three the
    first three.

    Args:
        name: Name of the folder.
        monitor: Where to write.
        interval: Number of iterations from one save to the next.
        verbose: Whether to log each save.
        num_images: Greatest number of images per save.
        normalize_method: Function of a batch that returns values in [0, 1], or uint8; None
            stretches the batch's least and greatest value to 0 and 1.
    Example:
        >>> from nnl.monitor import Monitor, MonitorImage
        >>> images = MonitorImage("noise", Monitor("ex_log"), interval=1, num_images=2)
        >>> images.add(0, rng.random((2, 3, 8, 8)))
    """

    def __init__(
        self,
        name: str,
        monitor: Monitor,
        interval: int = 1000,
        verbose: bool = True,
        num_images: int = 16,
        normalize_method: Callable[[Array], Array] | None = None,
    ) -> None:
        self.name = name
        self.interval = interval
        self.verbose = verbose
        self.num_images = num_images
        self.normalize_method = normalize_method or self.default_normalize_method
        self._events = _events_of(monitor)
        self.save_dir = os.path.join(monitor.save_path, _file_name(name))
        os.makedirs(self.save_dir, exist_ok=True)

    def default_normalize_method(self, x: Array) -> Array:
        """Stretch the values of x to [0, 1]; a constant becomes 0."""
        low, high = x.min(), x.max()
        return (x - low) / (high - low) if high > low else np.zeros(x.shape)

    def _images(self, index: int, var: Any) -> Array | None:
        """The images to save, normalised, (N, C, H, W); None if none are due."""
        if index != 0 and (index + 1) % self.interval != 0:
            return None
        batch = _values(var)
        if batch.ndim != 4:
            raise ValueError(
                f"{type(self).__name__}.add: {self.name} got the shape {batch.shape}, "
                "(samples, channels, height, width) wanted"
            )
        images = self.normalize_method(batch[: self.num_images])
        channels = images.shape[1]
        if channels == 2:
            full = 255 if images.dtype == np.uint8 else 1
            blue = np.full_like(images[:, :1], full)
            images = np.concatenate([images, blue], axis=1)
        return images[:, :3]

    def add(self, index: int, var: Any) -> None:
        """Save the images of an iteration, if they are due.

        Args:
            index: Number of the iteration.
            var: Array, NdArray or Variable of the shape (samples, channels, height, width).
        Raises:
            ValueError: var has another rank.
        """
        images = self._images(index, var)
        if images is None:
            return
        for number, image in enumerate(images):
            path = os.path.join(self.save_dir, f"{index:06d}-{number:03d}.png")
            imsave(path, image, channel_first=True)
            if self._events is not None:
                self._events.image(f"{self.name}/{number}", path, image.shape[1:], index)
        if self.verbose:
            pattern = os.path.join(self.save_dir, f"{index:06d}-*.png")
            logger.info("iter=%s {%s} are written to %s.", index, self.name, pattern)


class MonitorImageTile(MonitorImage):
    """Like MonitorImage, with all images of an iteration in one file, `<name>/<index>.png`.

    Example:
        >>> from nnl.monitor import Monitor, MonitorImageTile
        >>> tiles = MonitorImageTile("tiles", Monitor("ex_log"), interval=1, num_images=4)
        >>> tiles.add(0, rng.random((4, 3, 8, 8)))
    """

    def add(self, index: int, var: Any) -> None:
        """Save the images of an iteration as one, if they are due: see MonitorImage.add."""
        images = self._images(index, var)
        if images is None:
            return
        path = os.path.join(self.save_dir, f"{index:06d}.png")
        tiles = tile_images(images)
        imsave(path, tiles)
        if self._events is not None:
            self._events.image(self.name, path, tiles.shape[:2], index)
        if self.verbose:
            logger.info("iter=%s {%s} is written to %s.", index, self.name, path)


def tile_images(data: Array, padsize: int = 1, padval: float = 0) -> Array:
    """Lay images out in a square, row by row.

    Args:
        data: (N, C, H, W).
        padsize: Pixels to the right of and below each image.
        padval: Value of those pixels, and of places without an image.
    Returns:
        (S (H + padsize), S (W + padsize), C) with the least S whose square is at least N.
    Raises:
        ValueError: data has not four axes.
    Example:
        >>> from nnl.monitor import tile_images
        >>> tile_images(np.zeros((4, 3, 8, 8))).shape
        (18, 18, 3)
    """
    if data.ndim != 4:
        raise ValueError(
            f"tile_images: data has the shape {data.shape}, (images, channels, height, width) "
            "wanted"
        )
    count, channels, height, width = data.shape
    side = int(np.ceil(np.sqrt(count)))
    padding = ((0, side * side - count), (0, 0), (0, padsize), (0, padsize))
    tiles = np.pad(data, padding, mode="constant", constant_values=padval)
    tiles = tiles.reshape(side, side, channels, height + padsize, width + padsize)
    return tiles.transpose(0, 3, 1, 4, 2).reshape(
        side * (height + padsize), side * (width + padsize), channels
    )


def plot_series(filename: str, plot_kwargs: dict[str, Any] | None = None) -> Any:
    """Plot a file of MonitorSeries into the current axes of matplotlib.

    Args:
        filename: Name of the file.
        plot_kwargs: Keyword arguments of `matplotlib.pyplot.plot`.
    Returns:
        The lines that were drawn.
    Example:
        >>> from nnl.monitor import Monitor, MonitorSeries, plot_series
        >>> series = MonitorSeries("plotted", Monitor("ex_log"), interval=1, verbose=False)
        >>> series.add(0, 1.0)
        >>> _ = plot_series("ex_log/plotted.series.txt")
    """
    import matplotlib.pyplot as plt

    series = np.loadtxt(filename, ndmin=2)
    return plt.plot(series[:, 0], series[:, 1], **(plot_kwargs or {}))


def plot_time_elapsed(
    filename: str,
    elapsed: bool = False,
    unit: str = "s",
    plot_kwargs: dict[str, Any] | None = None,
) -> Any:
    """Plot a file of MonitorTimeElapsed into the current axes of matplotlib.

    Args:
        filename: Name of the file.
        elapsed: Whether to plot the time since the start instead of the time of each interval.
        unit: s, m, h or d.
        plot_kwargs: Keyword arguments of `matplotlib.pyplot.plot`.
    Returns:
        The lines that were drawn.
    Raises:
        ValueError: unit is unknown.
    Example:
        >>> from nnl.monitor import Monitor, MonitorTimeElapsed, plot_time_elapsed
        >>> clock = MonitorTimeElapsed("elapsed", Monitor("ex_log"), interval=1, verbose=False)
        >>> for i in range(3):
        ...     clock.add(i)
        >>> _ = plot_time_elapsed("ex_log/elapsed.timer.txt")
    """
    seconds = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    if unit not in seconds:
        raise ValueError(f"plot_time_elapsed: unit={unit!r} is not one of s, m, h, d")
    import matplotlib.pyplot as plt

    times = np.loadtxt(filename, ndmin=2)
    column = times[:, 3] if elapsed else times[:, 1]
    return plt.plot(times[:, 0], column / seconds[unit], **(plot_kwargs or {}))
