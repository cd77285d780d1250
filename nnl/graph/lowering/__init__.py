# SPDX-License-Identifier: Apache-2.0
"""From nodes to a program, and from its values to the arrays that hold them."""
