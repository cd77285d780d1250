# SPDX-License-Identifier: Apache-2.0
from nnl.training.inspection import (
    FunctionHookCallbackBase,
    NanInfTracer,
    TimeProfiler,
    pprint,
)

__all__ = ["FunctionHookCallbackBase", "NanInfTracer", "TimeProfiler", "pprint"]
