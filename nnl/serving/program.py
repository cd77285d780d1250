# SPDX-License-Identifier: Apache-2.0
"""A language model from a file of programs, as far as a server needs it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from nnl.graph.saving.files import Programs
from nnl.models.generation.cached import CHUNK, Array, Rows, sizes_up_to
from nnl.models.huggingface.stored import StoredText

GIVEN = {"tokens", "before", "counts"}


class ProgramRows(Rows):
    """What the programs of a file have read: what `Pretrained.save_program` has written.

    Attributes:
        text: Its tokenizer and template.
        config: Has the vocabulary, as that of a network does.
    Raises:
        ValueError: The file is damaged, or has other programs, or no tokenizer.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.programs = programs = Programs(path)
        where = programs.where
        if "source" in programs:
            raise ValueError(f"{where} answers a text; wanted one that writes on from it")
        known = "read" in programs and set(programs.inputs("read")) - {"slots"} == GIVEN
        if not known or "size" not in programs["read"].dims:  # older files have another program
            raise ValueError(
                f"{where} has no program 'read' of {', '.join(sorted(GIVEN))} at any "
                "size: it is not what Pretrained.save_program writes"
            )
        if not programs.language:
            raise ValueError(
                f"{where} has no tokenizer: save_program writes that of the folder that a model "
                "is from"
            )
        shape = programs.inputs("read")["tokens"].shape
        caches = [nd for name, nd in programs.arrays.items() if name.startswith("cache/")]
        scores = programs.outputs("read").get("scores")
        if len(shape) != 2 or not caches or scores is None or len(scores.shape) != 2:
            raise ValueError(f"{where} has no caches, or other scores than those of a text")
        self.text = StoredText(programs.language, where)
        sizes = sizes_up_to(programs["read"].dims["size"].greatest or CHUNK)
        super().__init__(*caches[0].shape[::2], scores.shape[1], sizes)
        self.config = SimpleNamespace(vocabulary=self.vocabulary)

    def vectors(self, texts: Any) -> Any:
        """
        Raises:
            ValueError: These programs give none.
        """
        raise ValueError("this model gives no vectors")

    def _run(self, rows: Sequence[Sequence[int]], size: int, every: bool) -> Array:
        some = "slots" in self.programs.inputs("read")
        slots, arrays = self._given(rows, size, some)
        given = dict(zip(("tokens", "before", "counts", "slots"), arrays, strict=True))
        if not some:
            del given["slots"]
        scores = self.programs.run("read", **given)["scores"]
        return scores[[at for at, i in enumerate(slots) if rows[i]]]
