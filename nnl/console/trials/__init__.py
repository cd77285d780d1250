# SPDX-License-Identifier: Apache-2.0
"""Trainings of documents by child processes, what they record, and how they compare."""
