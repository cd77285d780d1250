# SPDX-License-Identifier: Apache-2.0
"""What passes replace steps with, and those that choose no kernel: drop, join, fold, take apart."""
