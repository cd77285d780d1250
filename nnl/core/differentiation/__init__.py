# SPDX-License-Identifier: Apache-2.0
"""`nnl.grad`: gradients as Variables that have gradients themselves, and rules that users add."""
