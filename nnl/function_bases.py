# SPDX-License-Identifier: Apache-2.0
from nnl.functions import *  # noqa: F403
