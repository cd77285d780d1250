# SPDX-License-Identifier: Apache-2.0
"""What becomes of a call: computed, recorded or put off; in which context, with which hooks."""
