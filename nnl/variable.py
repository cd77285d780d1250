# SPDX-License-Identifier: Apache-2.0
import sys

from nnl.core import variable

sys.modules[__name__] = variable  # the module itself: its variables change at run time
