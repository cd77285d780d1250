# SPDX-License-Identifier: Apache-2.0
"""Programs: steps over numbered values as plain data, what they cost, as text and as JSON, and for
sizes that are open. Everything of nnl.graph may use it, and it uses nothing of that."""
