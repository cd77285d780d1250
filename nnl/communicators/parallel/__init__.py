# SPDX-License-Identifier: Apache-2.0
"""Networks larger than one device: meshes of ranks, and how parameters lie on them."""
