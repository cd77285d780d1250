# SPDX-License-Identifier: Apache-2.0
"""A step whose calls are put off while its Python runs on, and what runs them: at once or ahead."""
