# SPDX-License-Identifier: Apache-2.0
"""Networks as .nnb files, run by NNabla's C runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnl.converters.networks.model import Network
from nnl.converters.runtimes.others import in_nnablart


def infer(file: Path, network: Network) -> list[np.ndarray[Any, Any]]:
    """What the runtime computes for the values of the network's inputs, flat."""
    runtime = in_nnablart(str(file), file.name)
    if runtime is None:
        pytest.skip("nnablart, NNabla's C runtime, is not installed (NNL_NNABLART names it)")
    return list(runtime.run({name: v.d for name, v in network.inputs.items()}))
