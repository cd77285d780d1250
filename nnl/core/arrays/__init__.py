# SPDX-License-Identifier: Apache-2.0
"""Arrays: their shapes and types, the memory they are in, their operators, ways to look at it."""
