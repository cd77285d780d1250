# SPDX-License-Identifier: Apache-2.0
"""Data sets of a file, and the iterators over their rows."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np


def read_dataset(
    message: Any, index: int, prepare: bool, batch_size: int | None, seed: int = 0
) -> SimpleNamespace:
    """A data set; `data_iterator` is a function that makes its iterator, or None.

    Args:
        index: Its place in the file. With `seed` it determines the order of its rows, for all
            iterators of the data set together, as in NNabla.
    """
    found = SimpleNamespace(
        name=message.name,
        uri=message.uri,
        cache_dir=message.cache_dir,
        variables=list(message.variable),
        shuffle=message.shuffle,
        batch_size=message.batch_size if batch_size is None else batch_size,
        normalize=not message.no_image_normalization,
        overwrite_cache=message.overwrite_cache,
        create_cache_explicitly=message.create_cache_explicitly,
        data_iterator=None,
    )
    if prepare and message.uri:
        found.data_iterator = _Maker(found, (seed + index) % 2**32)
    return found


class _Maker:
    """Makes the iterators of one data set, whose orders come from one generator."""

    def __init__(self, dataset: SimpleNamespace, seed: int) -> None:
        self.dataset, self.seed = dataset, seed
        self.rng: np.random.RandomState | None = None

    def __call__(self) -> Any:
        from nnl.data.iterator import data_iterator_cache, data_iterator_csv_dataset
        from nnl.data.source_csv import CreateCache

        d = self.dataset
        if self.rng is None:
            self.rng = np.random.RandomState(self.seed)
            self.cached = bool(d.cache_dir) and not self._cache_is_due(d)
            if d.cache_dir and d.create_cache_explicitly:
                if not self.cached:
                    cache = CreateCache(d.uri, rng=self.rng, shuffle=d.shuffle)
                    cache.create(d.cache_dir, normalize=False)
                    self.rng, self.cached = np.random.RandomState(self.seed), True
        options = {"shuffle": d.shuffle, "rng": self.rng, "normalize": d.normalize}
        if self.cached:
            return data_iterator_cache(d.cache_dir, d.batch_size, **options)
        return data_iterator_csv_dataset(
            d.uri, d.batch_size, cache_dir=d.cache_dir or None, **options
        )

    @staticmethod
    def _cache_is_due(d: SimpleNamespace) -> bool:
        if d.overwrite_cache or not os.path.isdir(d.cache_dir):
            return True
        if d.create_cache_explicitly:
            return not os.path.exists(os.path.join(d.cache_dir, "cache_index.csv"))
        return not os.listdir(d.cache_dir)
