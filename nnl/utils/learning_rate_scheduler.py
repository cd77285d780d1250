# SPDX-License-Identifier: Apache-2.0
from nnl.solvers.learning_rate_scheduler import *  # noqa: F403
