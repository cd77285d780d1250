# SPDX-License-Identifier: Apache-2.0
"""tf.summary: numbers, histograms and images in event files, for TensorBoard."""

from __future__ import annotations

import os
import tempfile

import numpy as np

from nnl.dialects.tensorflow.graph import GraphKeys, add_to_collection, get_collection
from nnl.dialects.tensorflow.session import Summary
from nnl.dialects.tensorflow.table import tensor
from nnl.training.event_files import EventFile, _bytes


def _summary(kind):
    def make(name, tensor, max_outputs=3, collections=None, **_):
        found = Summary([(kind, name.replace(":", "_"), _tensor(tensor))])
        for key in [GraphKeys.SUMMARIES] if collections is None else collections:
            add_to_collection(key, found)
        return found

    make.__name__, make.__doc__ = kind, f"A {kind} for an event file."
    return make


_tensor = tensor
scalar, histogram, image = _summary("scalar"), _summary("histogram"), _summary("image")


def merge(inputs, collections=None, name=None):
    """Several summaries as one."""
    return Summary([row for s in inputs for row in s])


def merge_all(key=GraphKeys.SUMMARIES, scope=None):
    """All summaries that were made; None if there are none."""
    found = get_collection(key)
    return merge(found) if found else None


class FileWriter:
    """An event file in a folder, which is made if it is not there."""

    def __init__(self, logdir, graph=None, **_):
        os.makedirs(logdir, exist_ok=True)
        self._folder = logdir
        self._file = EventFile(logdir)

    def add_summary(self, summary, global_step=None):
        """Write what a session fetched."""
        step = int(global_step or 0)
        for kind, tag, value in summary:
            if kind == "scalar":
                self._file.scalar(tag, float(value), step)
            elif kind == "histogram":
                counts = _bytes(1, tag.encode()) + _bytes(5, _histogram(value))
                self._file._summary(counts, step)
            else:
                self._image(tag, value, step)

    def _image(self, tag, value, step):
        """Of floats the range is stretched, or where all are positive scaled, to 0 ... 255."""
        from nnl.data.image import imsave

        for i, x in enumerate(np.asarray(value)[:3]):
            if x.dtype.kind == "f":
                low, high = float(x.min(initial=0)), float(np.abs(x).max(initial=1e-12))
                x = x * (127 / high) + 128 if low < 0 else x * (255 / high)
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "x.png")
                whole = np.repeat(x, 3, -1) if x.shape[-1] == 1 else x
                imsave(path, whole.astype(np.uint8))
                self._file.image(f"{tag}/image/{i}", path, whole.shape[:2], step)

    def add_graph(self, graph, global_step=None):
        """Graphs are not written: `print(function.text())` shows what runs."""

    def flush(self):
        """What is written is there at once."""

    close = flush


def _histogram(value):
    """A HistogramProto with 30 equal buckets."""
    x = np.asarray(value, np.float64).reshape(-1)
    counts, edges = np.histogram(x, 30)
    fields = [x.min(initial=0), x.max(initial=0), x.size, x.sum(), (x * x).sum()]
    out = b"".join(bytes([i << 3 | 1]) + np.float64(v).tobytes() for i, v in enumerate(fields, 1))
    return out + _bytes(6, edges[1:].tobytes()) + _bytes(7, counts.astype(np.float64).tobytes())
