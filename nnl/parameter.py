# SPDX-License-Identifier: Apache-2.0
import sys

from nnl.core import parameter

sys.modules[__name__] = parameter  # the module itself: its variables change at run time
