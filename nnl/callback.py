# SPDX-License-Identifier: Apache-2.0
import sys

from nnl.core import callback

sys.modules[__name__] = callback  # the module itself: its variables change at run time
