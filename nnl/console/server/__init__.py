# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of a console, its folder and index, and the processes beside it."""
