# SPDX-License-Identifier: Apache-2.0
"""Functions in terms of simpler ones, for targets that lack them: arithmetic, exp, log, sums.

A rule gets the attributes of an op and Variables for its inputs, None where one is left out. It
gives the outputs that callers see, or None where it has nothing to say for these attributes.
Gradients do not matter here. Results are those of the op up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nnl.converters.rules import functions, linear_maps, losses, recurrent

SIMPLER: dict[str, Callable[..., Any]] = {
    **functions.RULES,
    **linear_maps.RULES,
    **losses.RULES,
    **recurrent.RULES,
}
