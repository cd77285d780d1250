# SPDX-License-Identifier: Apache-2.0
from nnl.training.profiler import (
    GraphProfiler,
    GraphProfilerCsvWriter,
    ProfileStat,
    convert_time_scale,
)

__all__ = ["GraphProfiler", "GraphProfilerCsvWriter", "ProfileStat", "convert_time_scale"]
