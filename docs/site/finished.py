# SPDX-License-Identifier: Apache-2.0
"""What must hold of the finished site: links lead somewhere, and no page is too long to load."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

LARGEST = 400_000  # bytes of a page without its pictures


def faults(site: Path) -> list[str]:
    """Pages that are too large, and links within the site that lead nowhere."""
    pages = {path.resolve(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    anchors = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in pages.items()}
    found = []
    for path, text in pages.items():
        name = path.relative_to(site.resolve()).as_posix()
        if (size := len(text.encode())) > LARGEST:
            found.append(f"{name} has {size} bytes, wanted at most {LARGEST}: split the page")
        for link in sorted(set(re.findall(r'(?:href|src)="([^"]*)"', text))):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.exists() or anchor and anchor not in anchors.get(target, {anchor}):
                found.append(f"{name} links to {link}, which does not exist")
    return found
