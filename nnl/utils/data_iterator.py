# SPDX-License-Identifier: Apache-2.0
from nnl.data.iterator import *  # noqa: F403
from nnl.data.workers import sample_rng  # noqa: F401
