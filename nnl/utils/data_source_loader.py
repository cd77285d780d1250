# SPDX-License-Identifier: Apache-2.0
from nnl.data.download import download, get_data_home  # noqa: F401
from nnl.data.loader import *  # noqa: F403
