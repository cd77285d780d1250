# SPDX-License-Identifier: Apache-2.0
"""What cuDNN itself says about our graphs; no GPU is needed, only its libraries."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TIMEOUT_S = 600

pytestmark = pytest.mark.skipif(
    find_spec("cudnn") is None, reason="NVIDIA's cuDNN front end is not installed"
)

# Builds, writes down and reads again; a process of its own, since a driver is made up in it.
ROUND_TRIP = """
import sys
from pathlib import Path
from nnl.ext.cuda.cudnn.builders import BUILDERS
from nnl.ext.cuda.cudnn.cache import PlanCache
from nnl.ext.cuda.cudnn.spec import Graph
from tests.cuda.cudnn_engines import calls, engine, no_driver, operand

no_driver()
cache = PlanCache(Path(sys.argv[1]))
first, second = engine(cache), engine(cache)
second._built = None  # it must not
for _, name, attrs, ins, outs in list(calls("bfloat16"))[1:3]:
    works = BUILDERS[name](attrs, [operand(x) for x in ins], [operand(x) for x in outs])
    for graph in works[0].steps:
        if isinstance(graph, Graph):
            assert first.plan(graph).workspace == second.plan(graph).workspace
print(len(list(cache.path.iterdir())), "plans")
"""


def python(*args: str) -> str:
    done = subprocess.run(
        [sys.executable, *args], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_plans_of_the_real_front_end_are_written_and_read(tmp_path: Path) -> None:
    assert python("-c", ROUND_TRIP, str(tmp_path)) == "2 plans\n"


@pytest.mark.long
def test_the_table_in_the_docs_is_what_cudnn_says() -> None:
    assert python("-m", "tests.cuda.cudnn_engines") in (ROOT / "docs/cudnn.md").read_text()


@pytest.mark.long
@pytest.mark.parametrize("args", ["resnet50 bfloat16 256", "gpt2 bfloat16 32", "bert bfloat16 128"])
def test_the_estimates_in_the_docs_are_those_of_the_plans(args: str) -> None:
    lines = python("-m", "tests.cuda.cudnn_estimate", *args.split()).splitlines()
    (whole,) = [line for line in lines if line.endswith("launches")]
    assert whole.replace(" in ", ", ") in (ROOT / "docs/cudnn.md").read_text()
