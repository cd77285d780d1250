# SPDX-License-Identifier: Apache-2.0
"""Ops: what everything knows about a function, and how a call becomes inputs and attributes."""
