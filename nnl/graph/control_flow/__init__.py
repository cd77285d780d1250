# SPDX-License-Identifier: Apache-2.0
"""Functions with programs inside: while_loop, scan, switch, and their gradients."""
