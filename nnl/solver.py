# SPDX-License-Identifier: Apache-2.0
from nnl.solvers import *  # noqa: F403
