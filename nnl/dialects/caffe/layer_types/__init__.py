# SPDX-License-Identifier: Apache-2.0
"""The layers, by what they do; each notes itself in `layer.KINDS`."""

from nnl.dialects.caffe.layer_types import (
    data,
    detection,
    losses,
    neurons,
    pictures,
    recurrent,
    shapes,
    vision,
)

__all__ = ["data", "detection", "losses", "neurons", "pictures", "recurrent", "shapes", "vision"]
