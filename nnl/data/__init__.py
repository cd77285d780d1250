# SPDX-License-Identifier: Apache-2.0
"""Data sources, iterators over them, and loaders of files."""
