# SPDX-License-Identifier: Apache-2.0
"""Exporters of functions of arrays: element by element, moved, reduced, multiplied."""
