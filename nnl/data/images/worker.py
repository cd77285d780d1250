# SPDX-License-Identifier: Apache-2.0
"""The program of a worker.

Its standard input and output carry a line of JSON per message: where the memory is that it shares
with its parent, the recipe, then parts of batches, each answered with the list of its damaged
pictures. Samples go into the memory. The worker ends when its input does.
"""

from __future__ import annotations

import json
import mmap
import sys

import numpy as np

from nnl.data.images.work import Recipe, make_samples


def main() -> None:
    handle, *shape = json.loads(sys.stdin.readline())
    slots = np.frombuffer(mmap.mmap(handle, 0), np.uint8).reshape(shape)
    recipe = Recipe(**json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        slot, epoch, items = json.loads(line)
        print(json.dumps(make_samples(recipe, epoch, items, slots[slot])), flush=True)


if __name__ == "__main__":
    main()
