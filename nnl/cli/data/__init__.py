# SPDX-License-Identifier: Apache-2.0
"""Commands on data sets and series of numbers."""
