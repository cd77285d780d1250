# SPDX-License-Identifier: Apache-2.0
"""Programs: steps over numbered values as plain data, made of graphs, stored in files, printed."""
