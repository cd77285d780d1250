# SPDX-License-Identifier: Apache-2.0
"""docs/conversion.md tells what can be converted."""

from tests.converters.conversion_table import PAGE, page


def test_the_page_is_true() -> None:
    assert page() == PAGE.read_text(), "run python -m tests.converters.conversion_table"
