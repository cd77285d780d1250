# SPDX-License-Identifier: Apache-2.0
from nnl.data.image import *  # noqa: F403
