# SPDX-License-Identifier: Apache-2.0
"""Importers of ai.onnx.ml and of text: trees, linear models, features, strings."""
