# SPDX-License-Identifier: Apache-2.0
"""What a console uses of its machine: the index in its folder, child processes, and a sandbox."""
