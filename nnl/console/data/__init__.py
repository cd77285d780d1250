# SPDX-License-Identifier: Apache-2.0
"""Data sets that a console keeps, and the samples in them."""
