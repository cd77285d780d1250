# SPDX-License-Identifier: Apache-2.0
"""Plugins that the console brings: scripts whose arguments say what their forms ask for."""
