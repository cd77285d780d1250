# SPDX-License-Identifier: Apache-2.0
import sys

from nnl.core import random

sys.modules[__name__] = random  # the module itself, so that its variables are seen as they change
