# SPDX-License-Identifier: Apache-2.0
"""Whether a step is put off, waited for, or given a plan: measured, and paid for by gains."""
