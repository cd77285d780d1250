# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's DALI in the place of our own engine.

Pictures, order and views are chosen here as for our engine, so that samples are the same but for
rounding; DALI decodes, resamples and mirrors, with threads or on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from nnl.data.images.pixels import Array, decode, read_header, read_piece, render
from nnl.data.images.sources import Piece
from nnl.data.images.views import View
from nnl.data.images.work import Damage, Item, Recipe, recolour, view_of


class _Read(NamedTuple):
    """A picture before it is decoded."""

    row: int
    index: int
    data: bytes
    view: View


class Dali:
    """An engine: one thread of ours feeds DALI, which has `threads` of its own.

    Args:
        shape: (slots, batch_size, size, size, 3).
        device: "cpu", or "mixed" to decode and resample on the GPU.
    Raises:
        ModuleNotFoundError: DALI is not installed.
    """

    def __init__(self, recipe: Recipe, shape: Sequence[int], threads: int, device: str) -> None:
        try:
            import nvidia.dali  # noqa: F401  # what is missing is said at once
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                'open_images: engine="dali" needs the package nvidia-dali-cuda130; '
                'engine="nnl" does without'
            ) from error
        self.slots = np.empty(shape, np.uint8)
        self._recipe, self._threads, self._device = recipe, max(1, threads), device
        self._pipeline = self._built()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="nnl_dali")

    def _built(self) -> Any:
        from nvidia.dali import fn, pipeline_def, types

        _, batch_size, size, _, _ = self.slots.shape

        @pipeline_def(  # type: ignore[misc]
            batch_size=batch_size,
            num_threads=self._threads,
            device_id=None if self._device == "cpu" else 0,
            prefetch_queue_depth=1,
        )
        def graph() -> Any:
            def given(name: str, dtype: Any) -> Any:
                return fn.external_source(name=name, dtype=dtype, ndim=1)

            pictures = fn.decoders.image_slice(
                given("data", types.UINT8),
                given("corner", types.INT32),
                given("extent", types.INT32),
                axes=(0, 1),
                device=self._device,
                output_type=types.RGB,
            )
            samples = fn.resize(
                pictures,
                size=(size, size),
                roi_start=given("begin", types.FLOAT),
                roi_end=given("end", types.FLOAT),
                interp_type=types.INTERP_LINEAR,
                antialias=True,
            )
            return fn.flip(samples, horizontal=fn.squeeze(given("mirrored", types.INT32), axes=0))

        pipeline = graph()
        pipeline.build()
        return pipeline

    def submit(self, slot: int, epoch: int, items: Sequence[Item]) -> list[Future[Damage]]:
        """Begin to write the samples of these items into a slot."""
        return [self._pool.submit(self._make, slot, epoch, items)]

    def _make(self, slot: int, epoch: int, items: Sequence[Item]) -> Damage:
        damage: Damage = []
        read = []
        for row, index, piece in items:
            try:
                one = self._read(row, index, epoch, piece)
                header = read_header(one.data)
                if header.turn == 1:
                    read.append(one)
                    continue
                # by our engine: what DALI turns, it turns before or after the view was cut
                out = self.slots[slot][row]
                render(one.data, lambda *_, view=one.view: view, self._recipe.exact, out)
                recolour(self._recipe, epoch, index, out)
            except (OSError, ValueError) as error:
                damage.append((row, str(error)[:200]))
        if not read:
            return damage
        try:
            samples = self._run(read)
        except RuntimeError:  # of one picture, and DALI does not say which
            self._pipeline = self._built()
            good = [one for one in read if self._is_good(one, damage)]
            if len(good) == len(read):
                raise
            read, samples = good, self._run(good) if good else self.slots[slot][:0]
        for one, sample in zip(read, samples, strict=True):
            out = self.slots[slot][one.row]
            out[...] = sample
            recolour(self._recipe, epoch, one.index, out)
        return damage

    def _read(self, row: int, index: int, epoch: int, piece: Piece) -> _Read:
        data = read_piece(Piece(*piece))
        if not isinstance(data, bytes):
            raise RuntimeError('open_images: engine="dali" reads no caches; engine="nnl" does')
        header = read_header(data)
        view = view_of(self._recipe, epoch, index)(header.height, header.width)
        return _Read(row, index, data, view)

    def _is_good(self, one: _Read, damage: Damage) -> bool:
        try:
            decode(one.data, read_header(one.data), True)
            return True
        except ValueError as error:
            damage.append((one.row, str(error)[:200]))
            return False

    def _run(self, read: Sequence[_Read]) -> Array:
        views = [one.view for one in read]
        regions = np.array([view.region for view in views], np.int32)
        boxes = np.array([view.box for view in views], np.float32)
        corners = regions[:, 1::-1]  # DALI has y before x
        origin = corners.astype(np.float32)
        fed = {
            "data": [np.frombuffer(one.data, np.uint8) for one in read],
            "corner": corners,
            "extent": regions[:, :1:-1] - corners,
            "begin": boxes[:, 1::-1] - origin,
            "end": boxes[:, :1:-1] - origin,
            "mirrored": np.array([[view.mirrored] for view in views], np.int32),
        }
        for name, values in fed.items():
            self._pipeline.feed_input(name, [np.ascontiguousarray(value) for value in values])
        (samples,) = self._pipeline.run()
        samples = samples if self._device == "cpu" else samples.as_cpu()
        found: Array = samples.as_array()
        return found

    def close(self) -> None:
        """Stop the thread. Closing twice is allowed."""
        self._pool.shutdown(cancel_futures=True)
        self._pipeline = None
