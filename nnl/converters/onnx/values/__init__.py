# SPDX-License-Identifier: Apache-2.0
"""What nodes of ONNX read and make: arrays or Variables, strings as numbers, codes of 8 bits, rows
that are counted. Importers use it, and what runs them."""
