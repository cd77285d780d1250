# SPDX-License-Identifier: Apache-2.0
"""What nnl computes for a node of ONNX: values in, values out, one importer an operator."""
