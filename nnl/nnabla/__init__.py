# SPDX-License-Identifier: Apache-2.0
"""What only scripts written for NNabla ask for: a table of its rarer import paths, `paths`, and
modules that nnl itself does not use."""
