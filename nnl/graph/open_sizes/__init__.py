# SPDX-License-Identifier: Apache-2.0
"""Programs for any size, recorded at several ones and run by the native engine."""
