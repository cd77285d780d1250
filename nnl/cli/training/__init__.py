# SPDX-License-Identifier: Apache-2.0
"""Commands that train, run and measure."""
