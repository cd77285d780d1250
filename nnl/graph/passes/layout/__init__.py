# SPDX-License-Identifier: Apache-2.0
"""Passes that choose kernels, and orders and types of elements in memory; what undoes that."""
