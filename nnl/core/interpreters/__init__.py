# SPDX-License-Identifier: Apache-2.0
"""What becomes of a call: computed, recorded or put off; with which hooks and switches."""
