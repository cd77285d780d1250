# SPDX-License-Identifier: Apache-2.0
from nnl.training.loss_scaling import DynamicLossScalingUpdater  # noqa: F401
