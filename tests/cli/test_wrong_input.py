# SPDX-License-Identifier: Apache-2.0
"""Every command that reads files, with files that are not there, damaged or of another kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from nnl.cli.main import COMMANDS, main

PICTURES = "-i {} -o out -c 1 -w 8 -g 8 -m trimming -s true -f1 a.csv"
# Commands with a place for the file.
READING = {
    "train": "-c {} -o out",
    "profile": "-c {} -o out",
    "compare_with_cpu": "-c {} -c2 {} -o out",
    "conv_dataset": "{} out.cache",
    "create_image_classification_dataset": PICTURES,
    "create_object_detection_dataset": f"{PICTURES} -n 1 -a 1 -d 4",
    "plot_series": "{} -o out.png",
    "plot_timer": "{} -o out.png",
    "draw_graph": "{} -o out",
    "nnb_template": "{} out.yaml",
    "encode_param": "-i {} -p out.h5",
    "decode_param": "-p {} -o out",
    "optimize": "{} out.nnp",
    "trials": "list -d {}",
    "search": "front -d {}",
    "plugin": "list -d {}",
    "forward": "-c {} -d {} -o out",
    "infer": "-c {} -o out {}",
    "convert": "{} out.onnx",
    "dump": "{}",
    "summary": "{}",
}
TABLES = ("conv_dataset", "plot_series", "plot_timer")
FOLDERS = ("create", "encode_param", "trials", "search", "plugin")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one, in which commands run."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", READING)
def test_what_is_not_there_is_named(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "gone.csv" if command in TABLES else "gone.nnp"
    assert main([command, *READING[command].format(name, name).split()]) == 3
    printed = capsys.readouterr()
    first = printed.err.splitlines()[0]
    assert name in first and first.startswith(f"nnl {command}: error: ")
    assert "Errno" not in first and printed.out == ""
    assert not list(folder.iterdir())


@pytest.mark.parametrize("command", [c for c in READING if not c.startswith(FOLDERS)])
def test_what_is_damaged_is_named_with_the_reason(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "bad.csv" if command in TABLES else "bad.nnp"
    (folder / name).write_text("x,y\n")
    assert main([command, *READING[command].format(name, name).split()]) == 1
    printed = capsys.readouterr()
    first = printed.err.splitlines()[0]
    assert name in first and first.startswith(f"nnl {command}: error: ")
    assert "error: nnl:" not in first and printed.out == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_a_command_does(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"usage: nnl {command}") and printed.err == ""
