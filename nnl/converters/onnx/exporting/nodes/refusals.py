# SPDX-License-Identifier: Apache-2.0
"""Functions without an ONNX meaning, with the reasons."""

from __future__ import annotations

_AUGMENTATION = "it augments training images at random and has no place in inference"
_PACKED = "the length of its result depends on the lengths of the sequences; ONNX has no such form"

NO_MEANING: dict[str, str] = {
    "batch_cholesky": "ONNX has no matrix decompositions",
    "batch_inv": "ONNX has no inverse of a matrix",
    "cached_attention": "it writes caches that outlive a run; attention has a form",
    "image_augmentation": _AUGMENTATION,
    "max_pooling_backward": "it is the gradient of another function",
    "pack_padded_sequence": _PACKED,
    "pad_packed_sequence": _PACKED,
    "python_function": "it runs Python code",
    "rand_beta": "ONNX draws uniform and normal numbers only",
    "rand_gamma": "ONNX draws uniform and normal numbers only",
    "random_crop": _AUGMENTATION,
    "random_erase": _AUGMENTATION,
    "random_flip": _AUGMENTATION,
    "random_shift": _AUGMENTATION,
}
