# SPDX-License-Identifier: Apache-2.0
"""Vectors of texts, by a pretrained encoder."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nnl.converters.weights.folder import read_json
from nnl.core.graph.variable import Variable
from nnl.graph.recording.compile import compile
from nnl.models.encoder import sentence_vectors
from nnl.models.generation.generate import as_prompts
from nnl.models.huggingface.family import Array, Family

LENGTHS = 16  # lengths of batches are multiples of it, so that few of them are recorded
BATCH = 32
MODES = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
}


class Embeds:
    """What gives vectors for texts; the attributes are of the class."""

    family: Family
    config: Any
    source: dict[str, Any]
    where: str
    folder: Path | None
    text: Any

    @cached_property
    def _embed(self) -> Any:
        def embed(tokens: Any, keep: Any, pooling: str, normalized: bool) -> Any:
            return sentence_vectors(self(tokens, keep=keep), keep, pooling, normalized)  # type: ignore[operator]

        return compile(embed)

    @cached_property
    def _pooling(self) -> tuple[str, bool]:
        """What sentence-transformers has noted in the folder: (pooling, normalized)."""
        if self.folder is None or not (self.folder / "modules.json").is_file():
            return "mean", True
        modules = (self.folder / "modules.json").read_text(encoding="utf-8")
        file = self.folder / "1_Pooling" / "config.json"
        said = read_json(file, self.where) if file.is_file() else {}
        modes = [name for key, name in MODES.items() if said.get(key)]
        if len(modes) > 1 or not modes and said:
            raise ValueError(f"{self.where}: {file}: only one of {', '.join(MODES)} is supported")
        return (modes or ["mean"])[0], "Normalize" in modules

    def vectors(
        self, texts: Any, pooling: str | None = None, normalized: bool | None = None
    ) -> Array:
        """Vectors of texts, close to each other where they say the same.

        Args:
            texts: One or several, as text or as tokens.
            pooling, normalized: See `sentence_vectors`; what the folder says, else "mean" and True.
        Returns:
            (width,) for one text, (n, width) for several.
        Raises:
            ValueError: A text has no tokens, too many, or one that is none; the family does
                something else.
        """
        if self.family.kind != "vectors":
            raise ValueError(f"vectors: {self.source['model_type']} gives no vectors of texts")
        tokens, one, _ = as_prompts(texts, self.text.encode if _has_text(texts) else list)
        c = self.config
        longest = c.longest - (0 if c.padding is None else c.padding + 1)
        for i, t in enumerate(tokens):
            if not 0 < len(t) <= longest:
                raise ValueError(f"vectors: text {i} has {len(t)} tokens, wanted 1 to {longest}")
            if min(t) < 0 or max(t) >= c.vocabulary:
                raise ValueError(
                    f"vectors: text {i} has the token {max(t)}, wanted 0 to {c.vocabulary - 1}"
                )
        noted = self._pooling
        how = (pooling or noted[0], noted[1] if normalized is None else normalized)
        order = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))
        found = np.zeros((len(tokens), c.stack.width), np.float32)
        for begin in range(0, len(order), BATCH):
            rows = order[begin : begin + BATCH]
            found[rows] = self._batch([tokens[i] for i in rows], longest, how)
        return found[0] if one else found

    def _batch(self, tokens: list[list[int]], longest: int, how: tuple[str, bool]) -> Array:
        length = min(-(-max(map(len, tokens)) // LENGTHS) * LENGTHS, longest)
        ids = np.full((len(tokens), length), self.config.padding or 0)
        keep = np.zeros((len(tokens), length), np.float32)
        for i, t in enumerate(tokens):
            ids[i, : len(t)], keep[i, : len(t)] = t, 1
        y: Array = self._embed(*map(Variable.from_numpy_array, (ids, keep)), *how).d
        return y


def _has_text(texts: Any) -> bool:
    return isinstance(texts, str) or any(isinstance(t, str) for t in texts)
