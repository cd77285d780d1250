# SPDX-License-Identifier: Apache-2.0
"""Classifier: a network that is given pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl.dialects.caffe import io
from nnl.dialects.caffe.net import TEST, Net

Array = np.ndarray[Any, Any]


class Classifier(Net):
    """A network whose first input is a picture and whose first output scores of classes.

    Args:
        model_file, pretrained_file: As of Net.
        image_dims: (height, width) that pictures are resized to before parts are cut out; the
            input's if left out.
        mean, input_scale, raw_scale, channel_swap: As of io.Transformer.
    """

    def __init__(
        self,
        model_file: str,
        pretrained_file: str,
        image_dims: Sequence[int] | None = None,
        mean: Array | None = None,
        input_scale: float | None = None,
        raw_scale: float | None = None,
        channel_swap: Sequence[int] | None = None,
    ) -> None:
        super().__init__(model_file, pretrained_file, TEST)
        name = self.inputs[0]
        self.transformer = io.Transformer({name: self.blobs[name].sizes})
        self.transformer.set_transpose(name, (2, 0, 1))
        for set_it, value in (
            (self.transformer.set_mean, mean),
            (self.transformer.set_input_scale, input_scale),
            (self.transformer.set_raw_scale, raw_scale),
            (self.transformer.set_channel_swap, channel_swap),
        ):
            if value is not None:
                set_it(name, value)  # type: ignore[operator]
        self.crop_dims = tuple(self.blobs[name].sizes[2:])
        self.image_dims = tuple(image_dims or self.crop_dims)

    def predict(self, inputs: Sequence[Array], oversample: bool = True) -> Array:
        """Scores of classes.

        Args:
            inputs: Pictures (height, width, channels).
            oversample: Whether scores are means over ten parts of each, see io.oversample, else
                of the part in the centre.
        Returns:
            (number of pictures, number of classes).
        """
        name, (h, w) = self.inputs[0], self.crop_dims
        images = np.stack([io.resize_image(x, self.image_dims) for x in inputs])
        if oversample:
            parts = io.oversample(images, self.crop_dims)
        else:
            i, j = (self.image_dims[0] - h) // 2, (self.image_dims[1] - w) // 2
            parts = images[:, i : i + h, j : j + w]
        rows = np.stack([self.transformer.preprocess(name, x) for x in parts])
        scores = self.forward_all(**{name: rows})[self.outputs[0]]
        scores = scores.reshape(len(images), -1, *scores.shape[1:])
        return np.asarray(scores.mean(1))
