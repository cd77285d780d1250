# SPDX-License-Identifier: Apache-2.0
"""ONNX files as plain objects: bytes in, a checked Model out, and back. Knows no graph of nnl."""
