# SPDX-License-Identifier: Apache-2.0
"""What a person draws, as plain data, and as nnl's graph, Python code or a project of others."""
