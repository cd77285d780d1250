# SPDX-License-Identifier: Apache-2.0
"""nnl's graphs as ONNX files: a recorded graph in, a Model or file out."""
