# SPDX-License-Identifier: Apache-2.0
from nnl.converters.nnp.graph import NnpLoader, NnpNetwork, NnpNetworkPass

__all__ = ["NnpLoader", "NnpNetwork", "NnpNetworkPass"]
