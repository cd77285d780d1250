# SPDX-License-Identifier: Apache-2.0
from nnl.data.source_csv import CreateCache as CreateCache
