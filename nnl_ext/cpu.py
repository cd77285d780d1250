# SPDX-License-Identifier: Apache-2.0
from nnl.ext.host_device import *  # noqa: F403
from nnl.ext.native import context as context
