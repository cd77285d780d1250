# SPDX-License-Identifier: Apache-2.0
"""The page of the console is built into a wheel where Node.js is there; where not, that is said."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NODE = """#!/bin/sh
echo v{version}
"""
NPM = """#!/bin/sh
echo "$@" >> {log}
test "$1" = {fails} && {{ echo "npm error network" >&2; exit 1; }}
test "$1" = run && mkdir -p ../nnl/console/static && echo page > ../nnl/console/static/index.html
exit 0
"""


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The hooks of pip, in a copy of the sources whose PATH has no Node.js."""
    pytest.importorskip("scikit_build_core.build")
    if sys.platform == "win32":
        pytest.skip("the programs that stand in for Node.js are shell scripts")
    (tmp_path / "console" / "src").mkdir(parents=True)
    (tmp_path / "console" / "src" / "main.tsx").write_text("")
    (tmp_path / "bin").mkdir()
    source = (ROOT / "console" / "nnl_build.py").read_text()
    (tmp_path / "console" / "nnl_build.py").write_text(source)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    spec = importlib.util.spec_from_file_location("nnl_build", tmp_path / "console/nnl_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def node(folder: Path, version: str, fails: str = "nothing") -> Path:
    """Programs that stand in for Node.js; the file that npm writes its arguments into."""
    log = folder / "log"
    text = {"node": NODE.format(version=version), "npm": NPM.format(log=log, fails=fails)}
    for name, script in text.items():
        path = folder / "bin" / name
        path.write_text(script)
        path.chmod(0o755)
    os.environ["PATH"] += ":/usr/bin:/bin"  # mkdir
    return log


def test_the_page_is_built_where_node_is(build: Any, tmp_path: Path) -> None:
    log = node(tmp_path, "20.19.4")
    assert build.build_page() is None
    assert log.read_text().splitlines() == ["ci --no-audit --no-fund", "run build"]
    assert build.build_page() is None and len(log.read_text().splitlines()) == 2  # it is new
    os.utime(build.PAGE, (0, 0))
    assert build.build_page() is None and len(log.read_text().splitlines()) == 4


def test_what_hinders_the_page_is_said_and_the_wheel_is_built(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "_build_wheel", lambda *a: "nnl.whl")
    assert build.build_wheel("dist") == "nnl.whl"
    said = capsys.readouterr().err
    assert "the page of `nnl console` was not built: there is no Node.js (node and npm)" in said
    assert "With Node.js 20.19, 22.12 or newer, install nnl again, or run `make console`" in said
    for version, fails, why in (
        ("18.20.1", "nothing", "node is v18.20.1, wanted Node.js 20.19, 22.12 or newer"),
        ("21.7.0", "nothing", "node is v21.7.0, wanted"),
        ("22.12.0", "ci", "`npm ci` failed: npm error network"),
        ("24.0.0", "run", "`npm run` failed: npm error network"),
    ):
        node(tmp_path, version, fails)
        assert build.build_wheel("dist") == "nnl.whl"
        assert why in capsys.readouterr().err
        assert not build.PAGE.exists()
