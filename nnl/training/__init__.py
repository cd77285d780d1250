# SPDX-License-Identifier: Apache-2.0
"""Monitors and learning rate schedules of a training run."""
