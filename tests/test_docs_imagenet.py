# SPDX-License-Identifier: Apache-2.0
"""The page on ImageNet names options that there are, and numbers that were measured."""

import json
import re
from pathlib import Path

import pytest

from docs.site import commands

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "imagenet.md"


def test_a_listing_of_options_is_what_the_script_says():
    said = commands.script("benchmarks/gpu.py")
    assert said.startswith("```text\nusage: gpu.py") and "--engines ENGINES" in said


def test_options_on_the_page_exist():
    pytest.importorskip("PIL")
    told = "".join(
        commands.script(f"{path}.py") for path in ("examples/imagenet/train", "benchmarks/imagenet")
    )
    named = set(re.findall(r"(?<![\w-])--[a-z][\w-]+", PAGE.read_text(encoding="utf-8")))
    assert len(named) > 25
    # of Slurm
    assert named - set(re.findall(r"--[\w-]+", told)) == {"--ntasks-per-node"}


def measured():
    """(network, precision) -> images per second of nnl and of the best PyTorch."""
    found = {}
    for path in (ROOT / "benchmarks" / "results").glob("imagenet-*.json"):
        runs = json.loads(path.read_text())
        for run in runs if isinstance(runs, list) else [runs]:
            for row, engines in run["rows"].items():
                network, _, precision = row.split()
                rate = {name: e["images_per_s"] for name, e in engines.items() if e}
                best = max(v for name, v in rate.items() if name != "nnl")
                found.setdefault((network, precision), []).append((rate["nnl"], best))
    return found


def test_pictures_a_second_are_those_of_the_results():
    rows = re.findall(r"^\| `(\w+)` \|((?: [\d.]+ \|){6})$", PAGE.read_text(encoding="utf-8"), re.M)
    found = measured()
    assert len(rows) == 11
    for network, numbers in rows:
        told = [float(n) for n in numbers.strip(" |").split(" | ")]
        for precision, (nnl, torch, ratio) in (("float", told[:3]), ("bfloat16", told[3:])):
            assert any(
                (round(a, 1), round(b, 1), round(a / b, 2)) == (nnl, torch, ratio)
                for a, b in found[network, precision]
            ), (network, precision, found[network, precision])
