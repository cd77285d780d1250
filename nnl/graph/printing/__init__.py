# SPDX-License-Identifier: Apache-2.0
"""Graphs, programs and plans for people: text, pictures, times."""
