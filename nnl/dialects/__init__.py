# SPDX-License-Identifier: Apache-2.0
"""Scripts of other frameworks, on nnl: each dialect is a package with that framework's names."""
