# SPDX-License-Identifier: Apache-2.0
"""Scripts that run under nnl as under NNabla: `Nnabla.exec` is the other side."""

from __future__ import annotations

from typing import Any

import numpy as np

import nnl as nn
import nnl.functions as F
import nnl.initializer as I
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.utils.load import load, restore_optimizer_state
from nnl.utils.save import save

# What a script of files needs under NNabla; here these names are there.
IMPORTS = """
import logging
logging.disable(logging.CRITICAL)
from nnabla.utils.save import save
from nnabla.utils.load import load, restore_optimizer_state
"""


def run_here(text: str, inputs: Any) -> dict[str, Any]:
    """What a script leaves in `outputs`; its parameters stay until the next one."""
    outputs: dict[str, Any] = {}
    names = {"nn": nn, "F": F, "PF": PF, "S": S, "I": I, "np": np}
    names |= {"save": save, "load": load, "restore_optimizer_state": restore_optimizer_state}
    nn.seed(313)
    nn.clear_parameters()
    level = nn.logger.level
    try:
        exec(text, names | {"inputs": inputs, "outputs": outputs})
    finally:
        nn.logger.setLevel(level)  # scripts change it
        nn.set_auto_forward(False)
    return outputs


def check_script(
    nnabla: Any, text: str, inputs: Any = None, rtol: float = 1e-4, atol: float = 1e-5
) -> None:
    """Fail if a script leaves something else under nnl, into which its imports are renamed."""
    inputs = inputs or {}
    want, got = nnabla.exec(text, inputs), run_here(text.replace("nnabla", "nnl"), inputs)
    assert want and list(want) == list(got)
    for key, w in want.items():
        found = np.array(got[key])
        if found.dtype.kind == "f":
            np.testing.assert_allclose(found, w, rtol=rtol, atol=atol, err_msg=key)
        else:
            assert found.tolist() == w.tolist(), key
