# SPDX-License-Identifier: Apache-2.0
"""Graphs and plans for people: text, pictures, times."""
