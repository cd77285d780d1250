# SPDX-License-Identifier: Apache-2.0
"""Saver: variables in TensorFlow's own checkpoint files."""

from __future__ import annotations

import os
import re
from collections import namedtuple

import numpy as np

from nnl.converters.tensorflow.checkpoint import Checkpoint
from nnl.converters.tensorflow.checkpoint import save as write
from nnl.converters.tensorflow.messages import TensorFlowError
from nnl.dialects.tensorflow.session import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from nnl.dialects.tensorflow.variables import global_variables

CheckpointState = namedtuple(
    "CheckpointState", ("model_checkpoint_path", "all_model_checkpoint_paths")
)


class Saver:
    """Writes and reads variables.

    Args:
        var_list: Variables, or {name in the file: variable}; all if left out.
        max_to_keep: How many of the newest files stay; all for 0 or None.
    """

    def __init__(self, var_list=None, reshape=False, sharded=False,
                 max_to_keep=5, **_):  # fmt: skip
        self._given, self._keep = var_list, max_to_keep
        self.last_checkpoints = []
        if var_list is None and not global_variables():
            raise ValueError("No variables to save")

    def _variables(self):
        if isinstance(self._given, dict):
            return self._given
        those = global_variables() if self._given is None else self._given
        return {v.op.name: v for v in those}

    def save(self, sess, save_path, global_step=None, latest_filename=None,
             meta_graph_suffix="meta", write_meta_graph=True,
             write_state=True):  # fmt: skip
        """Write the values to save_path-STEP.index and .data, and note that in "checkpoint".

        Returns:
            The beginning of the files' names.
        Raises:
            FailedPreconditionError: A variable has no value.
            ValueError: There is no such folder.
        """
        prefix = os.fspath(save_path)
        if global_step is not None:
            step = (
                global_step if isinstance(global_step, (int, np.integer)) else sess.run(global_step)
            )
            prefix = f"{prefix}-{int(step)}"
        folder = os.path.dirname(prefix)
        if folder and not os.path.isdir(folder):
            raise ValueError(f"Parent directory of {save_path} doesn't exist, can't save.")
        for v in self._variables().values():
            if not v.kept:
                raise FailedPreconditionError(f"Attempting to use uninitialized value {v.label}")
        write(prefix, {k: v.workspace.fetch(v) for k, v in self._variables().items()})
        self.last_checkpoints = [p for p in self.last_checkpoints if p != prefix] + [prefix]
        while self._keep and len(self.last_checkpoints) > self._keep:
            old = self.last_checkpoints.pop(0)
            for end in (".index", ".data-00000-of-00001"):
                if os.path.exists(old + end):
                    os.remove(old + end)
        if write_state:
            _note(folder, latest_filename or "checkpoint", self.last_checkpoints)
        return prefix

    def restore(self, sess, save_path):
        """Set variables to what a checkpoint has: all of them, or none where something is wrong.

        Raises:
            NotFoundError: There is no such file, or it lacks a variable.
            InvalidArgumentError: A variable has another shape there, or the file is damaged.
        """
        prefix = os.fspath(save_path)
        if not checkpoint_exists(prefix):
            raise ValueError(f"The passed save_path is not a valid checkpoint: {save_path}")
        read = {}
        try:
            file = Checkpoint(prefix)
            names = set(file.names())
            for name, v in self._variables().items():
                if name not in names:
                    raise NotFoundError(f"Key {name} not found in checkpoint")
                read[v] = np.asarray(file(name))
                if v.sizes is not None and read[v].shape != v.sizes:
                    raise InvalidArgumentError(
                        "Assign requires shapes of both tensors to match. lhs shape= "
                        f"{list(v.sizes)} rhs shape= {list(read[v].shape)}, of {name}"
                    )
        except (TensorFlowError, OSError) as error:
            raise InvalidArgumentError(str(error)) from error
        for v, array in read.items():
            v.load(array)


def _note(folder, name, paths):
    def line(key, path):
        own = os.path.relpath(path, folder or ".") if not os.path.isabs(path) else path
        return f'{key}: "{own}"\n'

    text = line("model_checkpoint_path", paths[-1])
    text += "".join(line("all_model_checkpoint_paths", p) for p in paths)
    where = os.path.join(folder, name)
    with open(f"{where}.new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{where}.new", where)


def get_checkpoint_state(checkpoint_dir, latest_filename=None):
    """What the file "checkpoint" of a folder names; None if there is none."""
    where = os.path.join(checkpoint_dir, latest_filename or "checkpoint")
    if not os.path.isfile(where):
        return None
    with open(where, encoding="utf-8", errors="replace") as file:
        rows = re.findall(r'^(\w+): "(.*)"$', file.read(), re.M)
    whole = [(k, p if os.path.isabs(p) else os.path.join(checkpoint_dir, p)) for k, p in rows]
    newest = [p for k, p in whole if k == "model_checkpoint_path"]
    every = [p for k, p in whole if k == "all_model_checkpoint_paths"]
    return CheckpointState(newest[0], every) if newest else None


def latest_checkpoint(checkpoint_dir, latest_filename=None):
    """The beginning of the names of the newest files; None if there are none."""
    state = get_checkpoint_state(checkpoint_dir, latest_filename)
    if state is None or not checkpoint_exists(state.model_checkpoint_path):
        return None
    return state.model_checkpoint_path


def checkpoint_exists(checkpoint_prefix):
    """Whether there is a checkpoint of this name."""
    return any(os.path.isfile(p) for p in (f"{checkpoint_prefix}.index", checkpoint_prefix))


def load_variable(ckpt_dir_or_file, name):
    """A tensor of a checkpoint."""
    path = (
        latest_checkpoint(ckpt_dir_or_file) if os.path.isdir(ckpt_dir_or_file) else ckpt_dir_or_file
    )
    return Checkpoint(path)(name)


def list_variables(ckpt_dir_or_file):
    """Names and shapes of the tensors of a checkpoint."""
    path = (
        latest_checkpoint(ckpt_dir_or_file) if os.path.isdir(ckpt_dir_or_file) else ckpt_dir_or_file
    )
    file = Checkpoint(path)
    return [(name, list(np.shape(file(name)))) for name in file.names()]
