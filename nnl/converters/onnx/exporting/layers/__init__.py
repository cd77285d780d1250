# SPDX-License-Identifier: Apache-2.0
"""Exporters of the layers of networks."""
