# SPDX-License-Identifier: Apache-2.0
from nnl.converters.rewriting import *  # noqa: F403
from nnl.converters.rewriting import __all__ as __all__
