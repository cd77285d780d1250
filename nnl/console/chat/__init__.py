# SPDX-License-Identifier: Apache-2.0
"""Language models of a console: files in its folder, and the one that `nnl serve` answers for."""
