# SPDX-License-Identifier: Apache-2.0
"""Importers of what computes with 8 and 4 bits."""
