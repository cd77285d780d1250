# SPDX-License-Identifier: Apache-2.0
"""Batches of pictures for training and validation, from folders and shards, made by several
processes."""

from nnl.data.images.loader import Images
from nnl.data.images.opening import open_images

__all__ = ["Images", "open_images"]
