# SPDX-License-Identifier: Apache-2.0
"""Writing texts with a decoder: choosing tokens, caches, beams, a small model that guesses."""
