# SPDX-License-Identifier: Apache-2.0
"""Runs graphs in TensorFlow: a program of its own for an environment that has TensorFlow, and
needs nothing of nnl.

    python tensorflow_worker.py

Reads lines of JSON: the frozen graph, .meta or folder `file`, the .npz of its inputs `inputs`, the
names of `outputs`, and the .npz to write, `result`. Answers each with a line: {} or
{"error": text}.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np


def run(tf: Any, request: dict[str, Any]) -> None:
    """Run one graph."""
    with np.load(request["inputs"]) as file:
        given = {name: file[name] for name in file.files}
    if os.path.isdir(request["file"]):
        model = tf.saved_model.load(request["file"])
        f = model.signatures["serving_default"]
        found = f(**{name: tf.constant(v) for name, v in given.items()})
        names = request["outputs"] or sorted(found)
        values = [found[name].numpy() for name in names]
    elif request["file"].endswith(".meta"):
        with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
            saver = tf.compat.v1.train.import_meta_graph(request["file"])
            saver.restore(session, request["file"].removesuffix(".meta"))
            feeds = {f"{name}:0": v for name, v in given.items()}
            values = session.run([f"{n}:0" for n in request["outputs"]], feeds)
    else:
        graph_def = tf.compat.v1.GraphDef()
        with open(request["file"], "rb") as binary:
            graph_def.ParseFromString(binary.read())
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(graph_def, name="")
            with tf.compat.v1.Session(graph=graph) as session:
                feeds = {f"{name}:0": v for name, v in given.items()}
                values = session.run([f"{n}:0" for n in request["outputs"]], feeds)
    np.savez(request["result"], **{str(i): v for i, v in enumerate(values)})


def main() -> None:
    """Answer requests until there are no more."""
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # its sums have another order
    sys.path.pop(0)  # this folder, whose tensorflow.py is another one
    import tensorflow as tf

    errors = tf.errors.OpError, ValueError, TypeError, KeyError
    for line in sys.stdin:
        try:
            run(tf, json.loads(line))
            answer = {}
        except errors as error:
            answer = {"error": f"{type(error).__name__}: {str(error)[:2000]}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
