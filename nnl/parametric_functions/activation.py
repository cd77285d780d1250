# SPDX-License-Identifier: Apache-2.0
"""prelu: an activation with a learned slope."""

from __future__ import annotations

from typing import Any

from nnl import functions as F
from nnl.core.arguments.annotations import Input
from nnl.core.arrays.spec import check_axis
from nnl.core.parameters.parameter import get_parameter_or_create
from nnl.parametric_functions.api import parametric_function_api
from nnl.parametric_functions.initializer import ConstantInitializer

__all__ = ["prelu"]


@parametric_function_api("prelu", [("slope", "Slope", "() if shared, else (channels,)", True)])
def prelu(
    inp: Input,
    base_axis: int = 1,
    shared: bool = True,
    fix_parameters: bool = False,
    slope_init: Any = None,
) -> Any:
    r"""$y = \max(0, x) + a \min(0, x)$ with a slope a that is learnt.

    Args:
        inp: Any shape.
        base_axis: Axis of the channels.
        shared: Whether all channels have one slope.
        fix_parameters: Compute no gradient for the slope in this call.
        slope_init: Initializer or array; 0.25 if left out.
    Source: He et al., Delving Deep into Rectifiers, arXiv:1502.01852.
    Example:
        >>> x = array(np.ones((2, 4)))
        >>> PF.prelu(x, name="ex").shape
        (2, 4)
    """
    init = ConstantInitializer(0.25) if slope_init is None else slope_init
    shape = () if shared else (inp.shape[check_axis("prelu", base_axis, inp.spec, "inp")],)
    slope = get_parameter_or_create("slope", shape, init, True, not fix_parameters)
    return F.prelu(inp, slope, base_axis=base_axis)
