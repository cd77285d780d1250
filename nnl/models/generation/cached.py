# SPDX-License-Identifier: Apache-2.0
"""A decoder with caches: what it knows of some texts, and the scores of what comes next."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnl.core.variable import Variable
from nnl.graph.compile import compile
from nnl.graph.saving import save_program
from nnl.models.decoder import Decoder
from nnl.models.stack import Cache

Array = np.ndarray[Any, Any]
CHUNK = 64  # tokens of a text that one run of the first program takes


class Cached:
    """Some texts, as far as a decoder has read them.

    Two programs share parameters and caches: one reads up to `chunk` tokens of each text at once,
    one reads one. What a program is given says how many of the tokens count, so texts of any
    lengths go side by side.

    Args:
        network: decoder(config, tokens, caches=, before=, counts=, last=).
        batch: How many texts.
        capacity: How many tokens a text can get.
    Attributes:
        texts: The tokens that are in the caches.
    """

    def __init__(
        self,
        network: Callable[..., Any],
        config: Decoder,
        batch: int,
        capacity: int,
        chunk: int = CHUNK,
    ) -> None:
        self.network, self.config, self.batch, self.capacity = network, config, batch, capacity
        self.chunk = min(chunk, capacity)
        self.texts: list[list[int]] = [[] for _ in range(batch)]
        c = config.stack
        shape = (batch, c.kv_heads, capacity, c.head_width)
        self.caches = [Cache(Variable(shape), Variable(shape)) for _ in c.layers]
        for i, cache in enumerate(self.caches, 1):
            for name, v in zip(Cache._fields, cache, strict=True):
                v.name = f"cache/layer{i}/{name}"
                v.data.zero()
        self.read, self.step, self.check = (self._program(n) for n in ("read", "step", "check"))

    def _program(self, name: str) -> Any:
        last = name != "check"

        def program(tokens: Any, before: Any, counts: Any) -> dict[str, Any]:
            y = self.network(tokens, caches=self.caches, before=before, counts=counts, last=last)
            return {"scores": y}

        return compile(program)

    def feed(self, rows: Sequence[Sequence[int]]) -> Array:
        """Let the network read more of each text, nothing of those with an empty row.

        Returns:
            (batch, vocabulary): scores of what follows the last token that it has read now.
        Raises:
            ValueError: A text would be longer than the capacity.
        """
        scores = np.zeros((self.batch, self.config.vocabulary), np.float32)
        rest = [list(row) for row in rows]
        while any(rest):
            size = 1 if max(map(len, rest)) == 1 else self.chunk
            now = [row[:size] for row in rest]
            found = self._run(self.step if size == 1 else self.read, now, size)
            for i, row in enumerate(now):
                if row:
                    scores[i] = found[i]
                    rest[i] = rest[i][size:]
        return scores

    def feed_all(self, rows: Sequence[Sequence[int]]) -> Array:
        """The same, with the scores of what follows every token: (batch, T, vocabulary)."""
        return self._run(self.check, rows, max(map(len, rows)))

    def _run(self, program: Any, rows: Sequence[Sequence[int]], size: int) -> Array:
        tokens = np.zeros((self.batch, size), np.int64)
        for i, row in enumerate(rows):
            if len(self.texts[i]) + len(row) > self.capacity:
                raise ValueError(
                    f"generate: text {i} has {len(self.texts[i]) + len(row)} tokens, its cache "
                    f"takes {self.capacity}"
                )
            tokens[i, : len(row)] = row
        before, counts = ([len(r) for r in which] for which in (self.texts, rows))
        found = program(*map(Variable.from_numpy_array, map(np.array, (tokens, before, counts))))
        for text, row in zip(self.texts, rows, strict=True):
            text += row
        scores: Array = found["scores"].d
        return scores

    def keep(self, row: int, length: int) -> None:
        """Forget what a text has from a position on."""
        del self.texts[row][length:]

    def arrange(self, index: Sequence[int]) -> None:
        """Let each row be the text that the row index[i] was."""
        changed = [i for i, j in enumerate(index) if i != j]
        if not changed:
            return
        source = [index[i] for i in changed]
        length = max(len(self.texts[j]) for j in source)
        for v in (v for cache in self.caches for v in cache):
            buf = v.data.touch("host")
            buf[changed, :, :length] = buf[source, :, :length]
        texts = [list(self.texts[j]) for j in source]
        for i, text in zip(changed, texts, strict=True):
            self.texts[i] = text

    def start(self, prompts: Sequence[Sequence[int]]) -> Array:
        """Begin texts: what the caches hold of them already is not read again.

        Returns:
            (batch, vocabulary): scores of what follows.
        """
        rows = []
        for i, prompt in enumerate(prompts):
            known = 0
            for a, b in zip(self.texts[i], prompt[:-1], strict=False):
                if a != b:
                    break
                known += 1
            self.keep(i, known)
            rows.append(prompt[known:])
        return self.feed(rows)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write both programs and what they share; the caches are empty there."""
        for program, size in ((self.read, self.chunk), (self.step, 1)):
            zeros = [Variable((self.batch, size)), Variable((self.batch,)), Variable((self.batch,))]
            for v in zeros:
                v.d = np.zeros(v.shape, np.int64)
            program(*zeros)
        save_program(path, programs={"read": self.read, "step": self.step})
