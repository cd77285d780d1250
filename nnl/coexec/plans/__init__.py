# SPDX-License-Identifier: Apache-2.0
"""What is kept of the calls of earlier steps: blocks, and a tree of paths with a plan each."""
