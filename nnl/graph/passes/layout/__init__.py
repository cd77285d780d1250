# SPDX-License-Identifier: Apache-2.0
"""Passes that choose kernels, orders in memory and types, and what of it is kept between runs."""
