# SPDX-License-Identifier: Apache-2.0
"""Ops: what everything knows about a function, how a call becomes inputs and attributes, what they
keep (kernels by shape, the states of random numbers), indexing as a function."""
