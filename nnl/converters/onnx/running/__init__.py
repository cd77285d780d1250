# SPDX-License-Identifier: Apache-2.0
"""A Model as a function of Variables and arrays: it runs, records and trains by the importers."""
