# SPDX-License-Identifier: Apache-2.0
"""Settings from files: what the data caches may use, under the names of NNabla's configuration.

Later files override earlier ones: /etc/nnl.conf, ~/.nnl, nnl.conf in the current folder, and the
file that NNL_CONFIG_FILE_PATH names.
"""

from __future__ import annotations

import os
from configparser import RawConfigParser
from typing import Any

DEFAULTS: dict[str, dict[str, str]] = {
    "DATA_ITERATOR": {
        "cache_file_format": ".npy",  # or ".h5"
        "data_source_file_cache_size": "100",  # samples per cache file
        "data_source_buffer_max_size": "1073741824",  # a larger data set is read every epoch
        "cache_file_cache_num_of_threads": "4",  # cache files read ahead
        "data_source_file_cache_num_of_threads": "10",  # no effect: one thread reads
        "data_source_file_cache_location": "",  # folder for temporary caches; "" is the system's
    },
    # What scripts may ask for and nnl does not read itself.
    "LOG": {
        "log_file_name": "",
        "log_file_level": "DEBUG",
        "log_console_level": "INFO",
    },
    "MISC": {"misc_show_progress": "True", "nnp_param_format": ".h5"},
    "CALLBACK": {"util_callback_module": ""},
    "CHECKPOINT": {"optimizer_interval": "5"},
    "MULTINODE": {
        "analyse_gpu_status_interval": "20",
        "gpu_slowing_warning_threshold": "2",
        "gpu_slowing_error_threshold": "10",
    },
}


def read_config() -> RawConfigParser:
    """The defaults, overridden by the files that exist."""
    config = RawConfigParser()
    config.read_dict(DEFAULTS)
    files = ["/etc/nnl.conf", os.path.expanduser("~/.nnl"), os.path.abspath("nnl.conf")]
    config.read([*files, os.environ.get("NNL_CONFIG_FILE_PATH", "")])
    return config


nnl_config = nnabla_config = read_config()


class _Setting:
    """A value of the section DATA_ITERATOR as an attribute."""

    def __init__(self, option: str, kind: type) -> None:
        self.option, self.kind = option, kind

    def __get__(self, owner: Any, owner_type: Any = None) -> Any:
        text = nnl_config.get("DATA_ITERATOR", self.option)
        try:
            return self.kind(text)
        except ValueError:
            raise ValueError(
                f"settings: {self.option} of [DATA_ITERATOR] is {text!r}, wanted an int"
            ) from None

    def __set__(self, owner: Any, value: Any) -> None:
        nnl_config.set("DATA_ITERATOR", self.option, str(value))


class Settings:
    """Limits and formats of the data caches; read when a source is made."""

    cache_file_format = _Setting("cache_file_format", str)
    file_cache_rows = _Setting("data_source_file_cache_size", int)
    memory_cache_bytes = _Setting("data_source_buffer_max_size", int)
    prefetched_files = _Setting("cache_file_cache_num_of_threads", int)
    cache_location = _Setting("data_source_file_cache_location", str)


settings = Settings()
