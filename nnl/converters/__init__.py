# SPDX-License-Identifier: Apache-2.0
"""Readers and writers of files. Importing this gives the solvers their state files."""

from nnl.converters.nnp import solver_files as _solver_files  # noqa: F401
