# SPDX-License-Identifier: Apache-2.0
"""What all tests share: every pass over a program must leave one that can run."""

from nnl.graph import passes

passes.VERIFY = True
