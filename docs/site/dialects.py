# SPDX-License-Identifier: Apache-2.0
"""What dialects know, as tables."""

from __future__ import annotations

from nnl.dialects.caffe import layer_type_list


def caffe_layers() -> str:
    """The types of Caffe's layers."""
    return ", ".join(f"`{name}`" for name in layer_type_list()) + "."
