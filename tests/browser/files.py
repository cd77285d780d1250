# SPDX-License-Identifier: Apache-2.0
"""Files that a user gives to the page, and files that the page gives back."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any


def bring(page: Any, control: Any, path: Path) -> None:
    """Choose a file in the dialog that a control opens."""
    with page.expect_file_chooser() as dialog:
        control.click()
    dialog.value.set_files(path)


def drop(page: Any, target: Any, path: Path) -> None:
    """Drop a file from the desktop."""
    content = base64.b64encode(path.read_bytes()).decode()
    transfer = page.evaluate_handle(
        """([name, content]) => {
            const bytes = Uint8Array.from(atob(content), c => c.charCodeAt(0));
            const transfer = new DataTransfer();
            transfer.items.add(new File([bytes], name));
            return transfer;
        }""",
        [path.name, content],
    )
    target.dispatch_event("drop", {"dataTransfer": transfer})


def export(page: Any, item: str, folder: Path) -> Path:
    """The file that an item of the menu of files saves."""
    page.get_by_text("File", exact=True).click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name=f"Export: {item}").click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def drop_from_desktop(page: Any, at: tuple[int, int], path: Path) -> None:
    """Drop a file as the desktop does, which opens it where the page does not take it."""
    session = page.context.new_cdp_session(page)
    data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        event = {"type": kind, "x": at[0], "y": at[1], "data": data}
        session.send("Input.dispatchDragEvent", event)
    session.detach()
