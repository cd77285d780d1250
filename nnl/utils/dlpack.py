# SPDX-License-Identifier: Apache-2.0
from nnl.core.dlpack import from_dlpack, to_dlpack

__all__ = ["from_dlpack", "to_dlpack"]
