# SPDX-License-Identifier: Apache-2.0
"""What users pass, and what they are told where it is wrong: kinds of arguments, the names that
are nearest, the line of their program. Knows no array and no function."""
