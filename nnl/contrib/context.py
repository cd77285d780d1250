# SPDX-License-Identifier: Apache-2.0
from nnl.ext import extension_context

__all__ = ["extension_context"]
