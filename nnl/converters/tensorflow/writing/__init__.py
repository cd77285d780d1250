# SPDX-License-Identifier: Apache-2.0
"""Networks as TensorFlow's SavedModels, from what the writer of TensorFlow Lite makes of them."""
