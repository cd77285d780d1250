# SPDX-License-Identifier: Apache-2.0
from nnl.data.source import DataSource as DataSource
from nnl.data.source import DataSourceWithMemoryCache as DataSourceWithMemoryCache
from nnl.data.source import SlicedDataSource as SlicedDataSource
from nnl.data.source_file_cache import DataSourceWithFileCache as DataSourceWithFileCache
from nnl.data.source_file_cache import DataSourceWithFileCacheError as DataSourceWithFileCacheError
