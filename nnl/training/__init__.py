# SPDX-License-Identifier: Apache-2.0
"""What training runs share: averages of weights, files to go on from, monitors, schedules."""

from nnl.training.moving_average import MovingAverage
from nnl.training.runs import load_run, save_run

__all__ = ["MovingAverage", "load_run", "save_run"]
