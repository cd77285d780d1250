# SPDX-License-Identifier: Apache-2.0
"""Commands that convert, look into and change networks."""
