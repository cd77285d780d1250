# SPDX-License-Identifier: Apache-2.0
from nnl.core.context import Context
from nnl.core.modes import context_scope, get_current_context, set_default_context

__all__ = ["Context", "context_scope", "get_current_context", "set_default_context"]
