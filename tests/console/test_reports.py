# SPDX-License-Identifier: Apache-2.0
"""Reports of nnl bench in the console's folder."""

import json

import pytest

from nnl.console.trials import reports
from nnl.deep500.report import Report


def written(path, kind="network", **rows):
    rows = [{"backend": name, "phase": "inference", "median_s": s} for name, s in rows.items()]
    report = Report(kind, rows, {"model": "lenet"}, command=["bench", kind, "lenet"])
    path.parent.mkdir(exist_ok=True)
    report.write(path)
    return report


def test_reports_of_the_folder_are_listed_and_compared(console, browser):
    folder = console.folder / "reports"
    assert browser.get("/reports") == {"reports": [], "folder": str(folder)}
    first = written(folder / "before.json", nnl=0.2, torch=0.4)
    second = written(folder / "after.json", nnl=0.1, reference=3.0)
    (folder / "notes.json").write_text("{}")
    listed = browser.get("/reports")["reports"]
    assert {r["id"] for r in listed} == {first.id, second.id}
    found = browser.get(f"/reports/{first.id}")
    assert found["plots"] == [{"form": "bars", "x": "phase", "y": "median_s", "by": ["backend"]}]
    assert [c["text"] for c in found["columns"]] == ["back end", "phase", "median time"]
    assert found["rows"] == first.rows and found["backends"] == ["nnl", "torch"]
    assert found["versions"] == first.versions and found["hardware"] == first.hardware
    path = f"/reports/compare?first={first.id}&second={second.id}"
    (row,) = browser.get(path)["rows"]
    assert (row["backend"], row["first"], row["second"], row["ratio"]) == ("nnl", 0.2, 0.1, 0.5)

    other = written(folder / "other.json", "op", nnl=1.0)
    path = f"/reports/compare?first={first.id}&second={other.id}"
    assert "one report is about network, the other op" in browser.get(path, 422)["message"]
    (folder / "before.json").unlink()
    assert browser.get(f"/reports/{first.id}", 404)["code"] == "not_found"


def test_a_report_that_is_brought_stays(console, browser, tmp_path):
    report = written(tmp_path / "mine" / "a.json", nnl=0.2)
    content = (tmp_path / "mine" / "a.json").read_bytes()
    for _ in range(2):  # the same one is kept once
        assert browser.upload("/reports?name=..%2fa.json", content)["id"] == report.id
    assert [p.name for p in (console.folder / "reports").iterdir()] == [f"{report.id}.json"]


def of_rows(rows, **more):
    """A report with these parts and the id that belongs to them."""
    report = Report("op")
    report.rows = rows
    for name, value in more.items():
        setattr(report, name, value)
    return json.dumps({"id": report.id, **report._content()}).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[]", "a.json: not a report of nnl bench"),
        (b"\xff\xfe", "not a report"),
        (b"[" * 100_000, "not a report"),
        (of_rows([]).replace(b'"done"', b'"over"'), "not those that it was written with"),
        (of_rows([{"a": [1]}]), "its parts are not those of a report"),
        (of_rows({}), "its parts are not those of a report"),
        (of_rows([], versions=3), "its parts are not those of a report"),
        (of_rows([{"a": None}]).replace(b'"a": null', b'"a": NaN'), "a.json"),
        (of_rows([{"a": "\ud800"}]), "a.json"),
        (b" " * 2000, "a.json is larger than"),
    ],
)
def test_what_is_no_report_is_refused(console, browser, monkeypatch, content, message):
    if content.isspace():
        monkeypatch.setattr(reports, "MAX_BYTES", 1000)
        monkeypatch.setattr("nnl.console.api.reports.MAX_BYTES", 1000)
    status = 413 if content.isspace() else 422
    answer = browser.upload("/reports?name=a.json", content, status)
    assert message in answer["message"] and answer["where"] == "a.json"
    (console.folder / "reports").mkdir(exist_ok=True)
    (console.folder / "reports" / "bad.json").write_bytes(content)
    assert browser.get("/reports")["reports"] == []
