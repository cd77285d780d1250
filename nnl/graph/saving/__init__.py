# SPDX-License-Identifier: Apache-2.0
"""Programs in files: written of functions and graphs, read, run."""
