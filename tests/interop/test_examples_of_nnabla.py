# SPDX-License-Identifier: Apache-2.0
"""The table of what runs of a folder of programs for NNabla."""

import json

import pytest

from tests.interop.examples_of_nnabla import table

MAIN = "\nif __name__ == '__main__':\n    "


def test_a_table_says_what_each_program_did(tmp_path):
    folder = tmp_path / "given"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "model.py").write_text(
        "import nnabla.functions as F\ndef net(x): return F.relu(x)"
    )
    for name, line in {
        "good": "import model; print(nn.__name__); assert nn.__name__ == 'nnl'",
        "bad": "nn.Variable((2,)).d = np.ones(3)",
        "data": "open('train.csv')",
        "package": "import no_such_package",
        "long": "import time; time.sleep(60)",
    }.items():
        text = f"import numpy as np\nimport nnabla as nn{MAIN}{line}\n"
        (folder / "a" / f"{name}.py").write_text(text)
    (folder / "a" / "other.py").write_text(f"import json{MAIN}json.no_such_name\n")
    cells = [
        {"cell_type": "markdown", "source": ["import nothing"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "import nnabla as nn"]},
        {"cell_type": "code", "source": ["!pip install it\n", "assert nn.__name__ == 'nnl'"]},
    ]
    (folder / "note.ipynb").write_text(json.dumps({"cells": cells}))
    lines = table(folder, 5).splitlines()
    assert lines[2].startswith("| `a/bad.py` | stops at: ") and "(3,)" in lines[2]
    assert lines[3].startswith("| `a/data.py` | wants data: FileNotFoundError")
    assert lines[4] == "| `a/good.py` | runs |"
    assert lines[5] == "| `a/long.py` | runs (5 s were watched) |"
    assert lines[6].startswith("| `a/package.py` | wants a package: ModuleNotFoundError")
    assert lines[7:] == ["| `note.ipynb` | runs |"]


TRAINING = """
import sys
import numpy as np
import nnabla as nn
import nnabla.functions as F
import nnabla.parametric_functions as PF
import nnabla.solvers as S
from nnabla.monitor import Monitor, MonitorSeries

if __name__ == "__main__":
    x = nn.Variable((4, 3))
    loss = F.mean(F.dropout(PF.affine(x + F.randn(shape=(4, 3)), 2), 0.5) ** 2)
    solver = S.Sgd(0.1 if len(sys.argv) == 1 or len(nn.__name__) > 3 else 0.2)
    solver.set_parameters(nn.get_parameters())
    series = MonitorSeries("loss", Monitor("."), interval=10)
    for i in range(30):
        x.d = np.random.randn(4, 3)
        solver.zero_grad()
        loss.forward()
        loss.backward()
        solver.update()
        series.add(i, loss.d)
"""


@pytest.mark.interop
def test_a_program_is_compared_with_nnabla(nnabla, tmp_path):
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "arguments.txt").write_text("train.py\ntrain.py other\n")
    same, other = table(tmp_path, 60, nnabla.python).splitlines()[2:]
    off = [float(row.split("then ")[1].split()[0]) for row in (same, other)]
    assert same.startswith("| `train.py` | 20 updates: ") and off[0] < 1e-5
    assert other.startswith("| `train.py other` | 20 updates: ") and off[1] > 0.01
