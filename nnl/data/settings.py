# SPDX-License-Identifier: Apache-2.0
"""What the data caches may use. One object, read when a source is made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Settings:
    """Limits and formats of the data caches; change the fields of `settings`."""

    cache_file_format: str = ".npy"  # or ".h5"
    file_cache_rows: int = 100  # samples per cache file
    memory_cache_bytes: int = 1 << 30  # larger data sets are read again every epoch
    prefetched_files: int = 4  # cache files read ahead
    cache_location: str = ""  # folder for temporary caches; "" is the system's


settings = Settings()
