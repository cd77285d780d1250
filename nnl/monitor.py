# SPDX-License-Identifier: Apache-2.0
from nnl.training.monitor import *  # noqa: F403
