# SPDX-License-Identifier: Apache-2.0
"""nnl.compile: what is recorded of a call of a Python function, and that as a plan."""
