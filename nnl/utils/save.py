# SPDX-License-Identifier: Apache-2.0
from nnl.converters.nnp.writer import create_proto, save

__all__ = ["create_proto", "save"]
