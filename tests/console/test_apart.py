# SPDX-License-Identifier: Apache-2.0
"""Files that are made to do harm: the process that reads them ends, and the server says why."""

import io
import zipfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from nnl.console.data import tables
from nnl.console.data.pictures import png
from nnl.console.data.tables import read_cells
from nnl.console.errors import Refused
from nnl.console.machine import sandbox as module
from nnl.console.machine.sandbox import Limits, apart
from tests.console.networks import lenet

LONG = 30_000  # functions


@pytest.fixture
def small(monkeypatch):
    limits = Limits(memory=2**28, memory_per_byte=0, cpu_s=1, wall_s=30)
    monkeypatch.setattr(module, "LIMITS", limits)


def archive(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for name, content in members.items():
            file.writestr(name.replace("_", "."), content)
    return buffer.getvalue()


def long_network():
    """A text that takes seconds to read."""
    layer = 'function {{ name: "f{0}" type: "ReLU" input: "v{0}" output: "v{1}" }}'
    variable = 'variable {{ name: "v{0}" shape {{ dim: 1 dim: 1 }} }}'
    lines = [variable.format(0)]
    lines += [f"{layer.format(i, i + 1)} {variable.format(i + 1)}" for i in range(LONG)]
    return "network { name: 'n' batch_size: 1 " + "\n".join(lines) + "}"


@pytest.mark.parametrize(
    ("name", "content", "status", "message"),
    [
        ("a.nnp", lambda: archive(network_nntxt=b" " * 2**28), 413, "takes more than 0.25 GiB"),
        ("a.nntxt", lambda: b" " * 2**28, 413, "takes more than 0.25 GiB"),
        ("a.nntxt", lambda: long_network().encode(), 422, "takes longer than 1 s"),
    ],
)
def test_a_hostile_file_ends_its_own_process(browser, small, name, content, status, message):
    answer = browser.upload(f"/import?name={name}", content(), status)
    assert answer["code"] in ("unreadable", "too_large") and message in answer["message"], answer
    assert answer["where"] == name and browser.get("/health") == {"ok": True}


@pytest.fixture
def waiting(monkeypatch):
    found = []
    monkeypatch.setattr(module, "_waiting", found)
    module.keep_one_waiting()
    yield found
    for one in found:
        one.end()


def test_a_process_waits_and_another_one_after_it(waiting, small, tmp_path):
    path = tmp_path / "a.nntxt"
    path.write_bytes(b" " * 2**28)
    [first] = waiting
    with pytest.raises(Refused, match="takes more than 0.25 GiB"):
        apart("network", path, "a.nntxt", weights="")
    assert first.process.returncode == 0
    [second] = waiting
    assert second is not first and second.process.poll() is None


def test_a_process_that_was_ended_while_it_waited_is_replaced(waiting, tmp_path):
    waiting[0].process.kill()
    waiting[0].process.wait()
    path = tmp_path / "a.nntxt"
    path.write_text("network {")
    with pytest.raises(Refused) as caught:
        apart("network", path, "a.nntxt", weights="")
    assert caught.value.code == "unreadable" and "died" not in caught.value.message


def test_a_waiting_process_ends_with_its_server(waiting):
    process = waiting[0].process
    process.stdin.close()
    assert process.wait(60) == 0


def test_a_reader_that_dies_is_told_of(tmp_path, monkeypatch):
    script, path = tmp_path / "python", tmp_path / "a.onnx"
    script.write_text("#!/bin/sh\nkill -SEGV $$\n")
    script.chmod(0o700)
    path.write_bytes(b"")
    monkeypatch.setattr(module.sys, "executable", str(script))
    monkeypatch.setattr(module, "_waiting", [])
    with pytest.raises(Refused, match=r"a.onnx: what reads it has died \(SIGSEGV\)") as caught:
        apart("network", path, "a.onnx")
    assert caught.value.code == "unreadable" and caught.value.hint


def test_pickles_bombs_and_large_tables_in_cells_are_not_opened(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(Refused, match="a.npy: it has an array of object"):
        read_cells(["a.npy"], tmp_path)
    raw = bytearray((tmp_path / "a.npy").read_bytes()[:128])
    (tmp_path / "b.npy").write_bytes(raw.replace(b"|O", b"f4").replace(b"(1,)", b"(9999999999,)"))
    with pytest.raises(Refused, match="b.npy: .*larger than the"):
        read_cells(["b.npy"], tmp_path)
    (tmp_path / "c.png").write_bytes(png(np.zeros((8, 16), np.uint8)))
    monkeypatch.setattr(tables, "MAX_PIXELS", 100)
    with pytest.raises(Refused, match="c.png has 16 x 8 pixels"):
        read_cells(["c.png"], tmp_path)
    (tmp_path / "d.csv").write_text("1," * 100)
    monkeypatch.setattr(tables, "MAX_CELL_TABLE", 100)
    with pytest.raises(Refused, match="'d.csv' is larger than"):
        read_cells(["d.csv"], tmp_path)


# ---- a full disk ----


def test_an_upload_that_does_not_fit_the_disk_is_told_of(browser, console, monkeypatch):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")

    @contextmanager
    def scratch(name):
        yield full

    monkeypatch.setattr(console, "scratch", scratch)
    answer = browser.upload("/import?name=a.nntxt", b"network {}" * 100_000, 507)
    assert answer["code"] == "disk_full" and "free some space" in answer["hint"]


def test_an_index_that_is_full_keeps_what_was_saved(browser, console):
    first = browser.post("/projects", {"name": "a", "document": lenet().to_json()}, 201)
    pages = console.store.rows("PRAGMA page_count")[0]["page_count"]
    console.store.rows(f"PRAGMA max_page_count = {pages}")
    document = lenet(outmaps=8).to_json()
    document["networks"][0]["nodes"][0]["properties"]["note"] = "long " * 10_000
    answer = browser.post(
        f"/projects/{first['id']}/versions", {"document": document}, 507, If_Match=first["head"]
    )
    assert answer["code"] == "disk_full"
    console.store.rows("PRAGMA max_page_count = 100000")
    assert browser.get(f"/projects/{first['id']}")["head"] == first["head"]
    browser.post(
        f"/projects/{first['id']}/versions", {"document": document}, 201, If_Match=first["head"]
    )
