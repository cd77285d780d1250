# SPDX-License-Identifier: Apache-2.0
"""Programs for any size: sizes found from examples, and programs closed again by numbers."""
