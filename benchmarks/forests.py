# SPDX-License-Identifier: Apache-2.0
"""Forests and boosting of 500 trees beside ONNX Runtime: agreement, and time per call.

    python benchmarks/forests.py [--threads 1,2] [--rows 1,1000] [--json FILE]

scikit-learn grows the trees (5,000 rows of 20 features), skl2onnx writes them. Every call gets
other rows, as in use: a processor predicts the way of the same rows through the trees. The two
engines run by turns; times are processor time of the whole process, and ratios medians of
neighbouring calls.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from skl2onnx import to_onnx
from sklearn import ensemble
from sklearn.datasets import make_classification

import nnl as nn
from nnl.converters.onnx import load

Array = np.ndarray[Any, Any]
TREES = 500


def models(x: Array, y: Array) -> Iterator[tuple[str, bytes]]:
    """Names and ONNX files."""
    fitted = {
        "classes": ensemble.RandomForestClassifier(TREES, random_state=0, n_jobs=-1),
        "regression": ensemble.RandomForestRegressor(TREES, random_state=0, n_jobs=-1),
        "boosting": ensemble.GradientBoostingRegressor(n_estimators=TREES, random_state=0),
    }
    for name, model in fitted.items():
        options = {"zipmap": False} if name == "classes" else None
        yield (
            name,
            to_onnx(
                model.fit(x, y), x[:1], options=options, target_opset={"": 20, "ai.onnx.ml": 3}
            ).SerializeToString(),
        )


def seconds(run: Callable[[Array], Any], parts: list[Array]) -> float:
    """Processor time of a call, over calls with different rows."""
    start = time.process_time()
    for rows in parts:
        run(rows)
    return (time.process_time() - start) / len(parts)


def measure(name: str, file: bytes, x: Array, n: int, threads: int) -> dict[str, Any]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it is counted
    session = ort.InferenceSession(file, options)
    given = session.get_inputs()[0].name
    with nn.parameter_scope(name):
        net = load(file)
        parts = [np.ascontiguousarray(x[i : i + n]) for i in range(0, len(x) - n + 1, n)][:500]
        ours, theirs = net.run(parts[0]), session.run(None, {given: parts[0]})
        gap = max(
            float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(ours, theirs, strict=True)
        )
        pairs = [
            (seconds(net.run, parts), seconds(lambda v: session.run(None, {given: v}), parts))
            for _ in range(9)
        ]
    return {
        "model": name, "rows": n, "threads": threads, "difference": gap,
        "nnl_us": 1e6 * statistics.median(a for a, _ in pairs),
        "ort_us": 1e6 * statistics.median(b for _, b in pairs),
        "ratio": statistics.median(a / b for a, b in pairs),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rows", default="1,1000")
    parser.add_argument("--json", type=Path, help="write the numbers there")
    args = parser.parse_args()
    x, y = make_classification(5000, 20, n_informative=12, n_classes=3, random_state=0)
    x, found = x.astype(np.float32), []
    for name, file in models(x, y):
        for threads in map(int, args.threads.split(",")):
            nn.set_threads(threads)
            for n in map(int, args.rows.split(",")):
                found.append(row := measure(name, file, x, n, threads))
                print(
                    "{model:10} {rows:5} rows {threads} threads: {nnl_us:9.0f} us, ONNX Runtime "
                    "{ort_us:9.0f} us, ratio {ratio:.2f}, difference {difference:.1e}".format(
                        **row
                    ),
                    flush=True,
                )
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
