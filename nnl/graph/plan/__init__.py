# SPDX-License-Identifier: Apache-2.0
"""Plans: a program laid out in memory and bound to arrays; the only thing that runs."""
