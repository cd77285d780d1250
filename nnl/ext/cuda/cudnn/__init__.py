# SPDX-License-Identifier: Apache-2.0
"""Convolution, normalization, matrix products and attention by cuDNN. Not yet run on a GPU."""
