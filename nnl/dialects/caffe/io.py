# SPDX-License-Identifier: Apache-2.0
"""Pictures as networks want them, and arrays as messages."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.caffe.messages import messages
from nnl.converters.caffe.weights import values_of
from nnl.core.arguments.suggest import did_you_mean
from nnl.core.graph.variable import Variable
from nnl.core.interpreters.switches import auto_forward
from nnl.data.image import imread

Array = np.ndarray[Any, Any]
_MODES = ("nearest", "linear")  # by interp_order


def load_image(filename: str | os.PathLike[str], color: bool = True) -> Array:
    """A picture: (height, width, 3), or (height, width, 1) if not color; float32 in [0, 1]."""
    x = imread(filename, grayscale=not color, num_channels=3 if color else 1)
    return x.astype(np.float32) / np.float32(np.iinfo(x.dtype).max)


def resize_image(im: Array, new_dims: Sequence[int], interp_order: int = 1) -> Array:
    """A picture in another size: each new pixel is read at its place, however small they become.

    Args:
        im: (height, width, channels).
        new_dims: (height, width).
        interp_order: 0 takes the nearest pixel, 1 interpolates between four.
    Raises:
        ValueError: interp_order is another number.
    """
    if interp_order not in (0, 1):
        raise ValueError(f"resize_image: interp_order is {interp_order}, wanted 0 or 1")
    x = np.ascontiguousarray(im, np.float32).transpose(2, 0, 1)[None]
    with auto_forward():
        y = F.interpolate(
            Variable.from_numpy_array(x),
            output_size=tuple(int(n) for n in new_dims),
            mode=_MODES[interp_order],
            half_pixel=True,
            half_pixel_for_nn=interp_order == 0,
        )
    return np.ascontiguousarray(y.d[0].transpose(1, 2, 0))


def oversample(images: Sequence[Array], crop_dims: Sequence[int]) -> Array:
    """The four corners and the centre of each picture, then their mirror images: ten a picture.

    Args:
        images: Of one shape (height, width, channels).
        crop_dims: (height, width) of the parts.
    Returns:
        (10 * number of pictures, height, width, channels), float32.
    Raises:
        ValueError: The pictures are smaller than the parts.
    """
    x = np.asarray(images, np.float32)
    h, w = (int(n) for n in crop_dims)
    if x.ndim != 4 or x.shape[1] < h or x.shape[2] < w:
        raise ValueError(f"oversample: got the shape {x.shape}, wanted at least {(h, w)} of each")
    bottom, right = x.shape[1] - h, x.shape[2] - w
    corners = [(i, j) for i in (0, bottom) for j in (0, right)]
    parts = [x[:, i : i + h, j : j + w] for i, j in (*corners, (bottom // 2, right // 2))]
    five = np.stack(parts, 1)
    return np.concatenate([five, five[:, :, :, ::-1]], 1).reshape(-1, h, w, x.shape[3])


class Transformer:
    """Turns pictures into values of the inputs of a network, and back.

    `preprocess` does, in this order, what was set: resize to the input's height and width,
    transpose, swap channels, multiply by raw_scale, subtract the mean, multiply by input_scale.

    Args:
        inputs: {name: shape of the blob}, with the batch in front.
    """

    def __init__(self, inputs: Mapping[str, Sequence[int]]) -> None:
        self.inputs = {name: tuple(shape) for name, shape in inputs.items()}
        self.transpose: dict[str, tuple[int, ...]] = {}
        self.channel_swap: dict[str, tuple[int, ...]] = {}
        self.raw_scale: dict[str, float] = {}
        self.mean: dict[str, Array] = {}
        self.input_scale: dict[str, float] = {}

    def _shape(self, in_: str, where: str) -> tuple[int, ...]:
        if in_ not in self.inputs:
            raise ValueError(
                f"Transformer.{where}: no input is called {in_!r}{did_you_mean(in_, self.inputs)}"
            )
        return self.inputs[in_][1:]

    def preprocess(self, in_: str, data: Array) -> Array:
        """A picture as the input wants it, without the batch; float32."""
        size = self._shape(in_, "preprocess")[1:]
        x = np.array(data, np.float32)
        if x.shape[:2] != size and len(size) == 2:
            x = resize_image(x, size)
        if in_ in self.transpose:
            x = x.transpose(self.transpose[in_])
        if in_ in self.channel_swap:
            x = x[list(self.channel_swap[in_])]
        x = x * np.float32(self.raw_scale.get(in_, 1))
        if in_ in self.mean:
            x -= self.mean[in_]
        x *= np.float32(self.input_scale.get(in_, 1))
        return x

    def deprocess(self, in_: str, data: Array) -> Array:
        """The picture that a value of the input was made of, in the input's size."""
        x = np.array(data, np.float32)
        if x.ndim > len(self._shape(in_, "deprocess")) and len(x) == 1:
            x = x[0]
        x /= np.float32(self.input_scale.get(in_, 1))
        if in_ in self.mean:
            x += self.mean[in_]
        x /= np.float32(self.raw_scale.get(in_, 1))
        if in_ in self.channel_swap:
            x = x[np.argsort(self.channel_swap[in_])]
        if in_ in self.transpose:
            x = x.transpose(np.argsort(self.transpose[in_]))
        return x

    def set_transpose(self, in_: str, order: Sequence[int]) -> None:
        """The order of axes: (2, 0, 1) brings channels to the front."""
        axes = self._shape(in_, "set_transpose")
        if sorted(order) != list(range(len(axes))):
            raise ValueError(
                f"Transformer.set_transpose: order is {tuple(order)}, wanted an order of "
                f"{len(axes)} axes"
            )
        self.transpose[in_] = tuple(order)

    def set_channel_swap(self, in_: str, order: Sequence[int]) -> None:
        """The order of channels: (2, 1, 0) makes BGR of RGB."""
        channels = self._shape(in_, "set_channel_swap")[0]
        if sorted(order) != list(range(channels)):
            raise ValueError(
                f"Transformer.set_channel_swap: order is {tuple(order)}, wanted an order of "
                f"{channels} channels"
            )
        self.channel_swap[in_] = tuple(order)

    def set_raw_scale(self, in_: str, scale: float) -> None:
        """What pixels are multiplied with before the mean is subtracted: 255 where load_image
        gave them in [0, 1] and the mean is of bytes."""
        self._shape(in_, "set_raw_scale")
        self.raw_scale[in_] = scale

    def set_input_scale(self, in_: str, scale: float) -> None:
        """What pixels are multiplied with in the end."""
        self._shape(in_, "set_input_scale")
        self.input_scale[in_] = scale

    def set_mean(self, in_: str, mean: Array) -> None:
        """What is subtracted: one number a channel, or a picture (channels, height, width)."""
        shape, m = self._shape(in_, "set_mean"), np.asarray(mean, np.float32)
        if m.ndim == 1 and m.shape == shape[:1]:
            m = m[:, None, None]
        elif m.ndim == 2:
            m = m[None]
        if m.ndim != 3 or m.shape[0] != shape[0] or m.shape[1:] not in (shape[1:], (1, 1)):
            raise ValueError(
                f"Transformer.set_mean: mean has the shape {np.shape(mean)}, wanted {shape} or "
                f"{shape[:1]}"
            )
        self.mean[in_] = m


def blobproto_to_array(blob: Any, return_diff: bool = False) -> Array:
    """The numbers of a BlobProto.

    Raises:
        ValueError: They do not fit its shape.
    """
    if return_diff:
        part = messages()["BlobProto"]()
        part.CopyFrom(blob)
        part.data[:], part.double_data[:] = blob.diff, blob.double_diff
        blob = part
    if len(blob.data) == 1 and not blob.HasField("shape") and not blob.num:
        return np.array(blob.data, np.float32)
    return values_of(blob, "blobproto_to_array")


def array_to_blobproto(arr: Array, diff: Array | None = None) -> Any:
    """A BlobProto of an array, and of its gradient."""
    blob = messages()["BlobProto"]()
    blob.shape.dim.extend(np.shape(arr))
    blob.data.extend(np.ravel(arr).astype(float))
    if diff is not None:
        blob.diff.extend(np.ravel(diff).astype(float))
    return blob


def array_to_datum(arr: Array, label: int | None = None) -> Any:
    """A Datum of (channels, height, width): bytes of uint8, numbers of anything else.

    Raises:
        ValueError: The array has another number of axes.
    """
    if np.ndim(arr) != 3:
        raise ValueError(
            f"array_to_datum: arr has the shape {np.shape(arr)}, wanted (channels, height, width)"
        )
    c, h, w = np.shape(arr)
    datum = messages()["Datum"](channels=c, height=h, width=w)
    if np.asarray(arr).dtype == np.uint8:
        datum.data = np.asarray(arr).tobytes()
    else:
        datum.float_data.extend(np.ravel(arr).astype(float))
    if label is not None:
        datum.label = label
    return datum


def datum_to_array(datum: Any) -> Array:
    """The array of a Datum that is no encoded picture: uint8 of bytes, else float64."""
    shape = datum.channels, datum.height, datum.width
    flat = np.frombuffer(datum.data, np.uint8) if datum.data else np.array(datum.float_data)
    if flat.size != np.prod(shape):
        raise ValueError(f"datum_to_array: {flat.size} numbers for the shape {shape}")
    return flat.reshape(shape)
