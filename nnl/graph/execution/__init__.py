# SPDX-License-Identifier: Apache-2.0
"""forward() and backward() of Variables: plans of static graphs, rules of computed ones."""
