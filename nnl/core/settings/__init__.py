# SPDX-License-Identifier: Apache-2.0
"""What is set for a process or a thread: contexts, backends, modes, all functions by name."""
