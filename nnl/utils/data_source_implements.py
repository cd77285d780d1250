# SPDX-License-Identifier: Apache-2.0
from nnl.data.source_cache import CacheDataSource as CacheDataSource
from nnl.data.source_cache import CachePrefetcher as CachePrefetcher
from nnl.data.source_cache import CacheReaderWithPrefetch as CacheReaderWithPrefetch
from nnl.data.source_csv import CsvDataSource as CsvDataSource
from nnl.data.source_simple import ConcatDataSource as ConcatDataSource
from nnl.data.source_simple import SimpleDataSource as SimpleDataSource
