# SPDX-License-Identifier: Apache-2.0
"""Calls, arrays and backward passes of a step that are put off while its Python runs on."""
