# SPDX-License-Identifier: Apache-2.0
"""The routes under /api/v1, a module for each part of the page."""
