# SPDX-License-Identifier: Apache-2.0
import sys

from nnl.core import context

sys.modules[__name__] = context  # the module itself, so that its variables are seen as they change
