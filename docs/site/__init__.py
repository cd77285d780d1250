# SPDX-License-Identifier: Apache-2.0
"""What the documentation site is made with: `make docs`. Pages are the Markdown files beside it."""
