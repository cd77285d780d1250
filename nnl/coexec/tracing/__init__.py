# SPDX-License-Identifier: Apache-2.0
"""What steps of a program have done: graphs of their calls, loops, what is expected next."""
