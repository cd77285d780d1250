# SPDX-License-Identifier: Apache-2.0
"""The commands nnl and nnl-convert."""
