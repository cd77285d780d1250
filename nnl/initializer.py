# SPDX-License-Identifier: Apache-2.0
from nnl import random  # noqa: F401  (scripts write initializer.random.prng)
from nnl.parametric_functions.initializer import *  # noqa: F403
