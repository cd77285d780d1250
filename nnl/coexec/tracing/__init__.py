# SPDX-License-Identifier: Apache-2.0
"""What steps of a program have done, and the report of it: graphs of their calls, loops, causes."""
