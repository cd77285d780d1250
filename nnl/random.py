# SPDX-License-Identifier: Apache-2.0
import sys

from nnl.core import random

sys.modules[__name__] = random  # the module itself: its variables change at run time
