# SPDX-License-Identifier: Apache-2.0
"""What to say instead of a function, for all targets that lack it; `simpler` collects it."""
