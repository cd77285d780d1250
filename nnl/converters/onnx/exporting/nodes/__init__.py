# SPDX-License-Identifier: Apache-2.0
"""Nodes of a file that is being written: tensors, what exporters know, older opsets, refusals."""
