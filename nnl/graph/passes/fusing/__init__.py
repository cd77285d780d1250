# SPDX-License-Identifier: Apache-2.0
"""Passes that make one step of several."""
