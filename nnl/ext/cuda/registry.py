# SPDX-License-Identifier: Apache-2.0
"""The setups of CUDA devices."""

from nnl.ext.device.registry import Registry

SETUPS = Registry()
register = SETUPS.register
