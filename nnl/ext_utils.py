# SPDX-License-Identifier: Apache-2.0
from nnl.ext import get_extension_context, import_extension_module, list_extensions

__all__ = ["get_extension_context", "import_extension_module", "list_extensions"]
