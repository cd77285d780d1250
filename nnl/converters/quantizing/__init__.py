# SPDX-License-Identifier: Apache-2.0
"""Networks that compute with 8 bits, from networks of floats and samples of their inputs."""

from nnl.converters.quantizing.network import quantize

__all__ = ["quantize"]
