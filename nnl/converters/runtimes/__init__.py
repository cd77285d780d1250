# SPDX-License-Identifier: Apache-2.0
"""What others run a file with, where it is installed: to compare the file with its source."""
