# SPDX-License-Identifier: Apache-2.0
"""Parameters by name, and files that are written whole or not at all."""
