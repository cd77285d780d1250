# SPDX-License-Identifier: Apache-2.0
"""Commands that keep running: the console and the server of language models."""
