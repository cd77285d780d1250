# SPDX-License-Identifier: Apache-2.0
"""Which layers there are, and what is wrong with a node; read off nnl's functions."""
