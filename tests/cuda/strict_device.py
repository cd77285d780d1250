# SPDX-License-Identifier: Apache-2.0
"""The context "strict": the CUDA backend over the array module that stands for CuPy."""

import nnl as nn
from nnl.core.context import BACKENDS, SPACES
from nnl.ext.cuda.arrays import DeviceSpace, make_backend
from tests.cuda import strict_xp

SPACE = "strict:0"
SPACES[SPACE] = DeviceSpace(strict_xp.xp)
STRICT = make_backend("strict", SPACE, strict_xp.xp)
BACKENDS["strict"] = lambda device_id: (STRICT,)


def context(type_config="float"):
    return nn.Context([f"strict:{type_config}"])
