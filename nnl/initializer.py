# SPDX-License-Identifier: Apache-2.0
from nnl.parametric_functions.initializer import *  # noqa: F403
