# SPDX-License-Identifier: Apache-2.0
"""What runs calls that were put off: blocks, paths, and paths that run ahead of Python."""
