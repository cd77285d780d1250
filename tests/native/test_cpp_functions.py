# SPDX-License-Identifier: Apache-2.0
"""The page of functions that C++ refuses is what the library does."""

from __future__ import annotations

from pathlib import Path

from tests.native.cpp_functions import PAGE, page, refused
from tests.native.kernels import require_library


def test_the_page_names_what_is_refused(tmp_path: Path) -> None:
    require_library()
    found = refused(tmp_path)
    assert len(found) <= 20
    assert page(found) == PAGE.read_text(), "run python -m tests.native.cpp_functions"
