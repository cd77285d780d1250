# SPDX-License-Identifier: Apache-2.0
from nnl.data.download import download, get_data_home

__all__ = ["download", "get_data_home"]
