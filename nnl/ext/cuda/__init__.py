# SPDX-License-Identifier: Apache-2.0
"""The CUDA backend. Not yet run on a GPU."""
