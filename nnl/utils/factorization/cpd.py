# SPDX-License-Identifier: Apache-2.0
from nnl.parametric_functions.cpd import ALS

__all__ = ["ALS"]
