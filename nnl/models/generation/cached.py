# SPDX-License-Identifier: Apache-2.0
"""A decoder with caches: what it knows of some texts, and the scores of what comes next."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnl.core.graph.variable import Variable
from nnl.graph.recording.compile import compile
from nnl.graph.saving.saving import Saver
from nnl.models.decoder import Decoder
from nnl.models.stack import Cache

Array = np.ndarray[Any, Any]
CHUNK = 64  # tokens of a text that one run takes
FEW = 8  # the size below
BEGIN = "begin"  # what a reader gives for the program that writes a text, not for the network


def sizes_up_to(chunk: int) -> list[int]:
    """How many tokens runs of an open program take: one, or a power of two from FEW on."""
    few = [FEW << k for k in range(max(chunk // FEW, 1).bit_length())]
    return [1, *[n for n in few if 1 < n < chunk], *([chunk] if chunk > 1 else [])]


class Rows:
    """Some texts, as far as a network has read them, and what comes next.

    Args:
        batch: How many texts.
        capacity: How many tokens a text can get.
        sizes: How many tokens of each text runs take, from 1 on.
    Attributes:
        texts: The tokens that are in the caches.
    """

    def __init__(self, batch: int, capacity: int, vocabulary: int, sizes: Sequence[int]) -> None:
        self.batch, self.capacity, self.vocabulary = batch, capacity, vocabulary
        self.sizes, self.chunk = sizes, sizes[-1]
        self.texts: list[list[int]] = [[] for _ in range(batch)]

    def _run(self, rows: Sequence[Sequence[int]], size: int, every: bool) -> Array:
        """A run on up to `size` tokens of each; the scores of those that have some, in order.

        Args:
            every: Score what follows each token, not the last one.
        """
        raise NotImplementedError

    def _feed(
        self, rows: Sequence[Sequence[int]], size: int, every: bool = False
    ) -> tuple[list[int], Array]:
        """Which texts have read something, and the scores of these."""
        active = [i for i, row in enumerate(rows) if row]
        for i in active:
            length = len(self.texts[i]) + len(rows[i])
            if length > self.capacity:
                raise ValueError(
                    f"generate: text {i} has {length} tokens, its cache takes {self.capacity}"
                )
        found = self._run(rows, size, every)
        for i in active:
            self.texts[i] += rows[i]
        return active, found

    def _given(
        self, rows: Sequence[Sequence[int]], size: int, some: bool = True
    ) -> tuple[list[int], list[Array]]:
        """What a run takes.

        Args:
            some: It is of the texts that have something to read, and of as many others as make
                their number a power of two; else of all, in their order.
        Returns:
            The rows of these texts; of each the tokens, how many the caches have, how many there
            are now, and which row it is.
        """
        slots = list(range(self.batch))
        if some:
            slots.sort(key=lambda i: not rows[i])
            active = sum(map(bool, rows))
            del slots[1 << (active - 1).bit_length() :]
        tokens = np.zeros((len(slots), size), np.int64)
        for at, i in enumerate(slots):
            tokens[at, : len(rows[i])] = rows[i]
        before = [len(self.texts[i]) for i in slots]
        counts = [len(rows[i]) for i in slots]
        return slots, [tokens, *map(np.array, (before, counts, slots))]

    def feed(self, rows: Sequence[Sequence[int]]) -> Array:
        """Let the network read more of each text, nothing of those with an empty row.

        Returns:
            (batch, vocabulary): scores of what follows the last token that it has read now.
        Raises:
            ValueError: A text would be longer than the capacity.
        """
        scores = np.zeros((self.batch, self.vocabulary), np.float32)
        rest = [list(row) for row in rows]
        while any(rest):
            longest = min(max(map(len, rest)), self.chunk)
            size = next(n for n in self.sizes if n >= longest)
            active, found = self._feed([row[:size] for row in rest], size)
            scores[active] = found
            rest = [row[size:] for row in rest]
        return scores

    def keep(self, row: int, length: int) -> None:
        """Forget what a text has from a position on."""
        del self.texts[row][length:]

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


class Cached(Rows):
    """What a decoder has read, with programs that are made as they are needed.

    The network runs on the texts that have something to read, a power of two of them, and on one,
    a few or `chunk` tokens of each; there is a plan for each such size, over one set of parameters
    and caches. What it is given says how many of the tokens count, so texts of any lengths go side
    by side.

    Args:
        network: network(tokens, caches=, before=, counts=, slots=, last=, **memory).
        batch, capacity: See `Rows`.
    Attributes:
        memory: What else the network is given, with a row for each text.
    """

    def __init__(
        self,
        network: Callable[..., Any],
        config: Decoder,
        batch: int,
        capacity: int,
        chunk: int = CHUNK,
    ) -> None:
        chunk = min(chunk, capacity)
        super().__init__(batch, capacity, config.vocabulary, (1, min(FEW, chunk), chunk))
        self.network, self.config = network, config
        self.memory: dict[str, Variable] = {}
        c = config.stack
        shape = (batch, c.kv_heads, capacity, c.head_width)
        self.caches = [Cache(Variable(shape), Variable(shape)) for _ in c.layers]
        for i, cache in enumerate(self.caches, 1):
            for name, v in zip(Cache._fields, cache, strict=True):
                v.name = f"cache/layer{i}/{name}"
                v.data.zero()
        self.read, self.check = self._program(), self._program(last=False)

    def _program(self, last: bool = True, **how: Any) -> Any:
        def program(
            tokens: Any, before: Any, counts: Any, slots: Any = None, **memory: Any
        ) -> dict[str, Any]:
            given = {"before": before, "counts": counts, "slots": slots, **memory}
            return {"scores": self.network(tokens, caches=self.caches, **given, last=last)}

        return compile(program, **how)

    def feed_all(self, rows: Sequence[Sequence[int]]) -> Array:
        """The same, with the scores of what follows every token: (batch, T, vocabulary)."""
        size = max(map(len, rows))
        active, found = self._feed(rows, size, every=True)
        scores = np.zeros((self.batch, size, self.vocabulary), np.float32)
        scores[active] = found
        return scores

    def _run(self, rows: Sequence[Sequence[int]], size: int, every: bool) -> Array:
        slots, given = self._given(rows, size)
        memory = self.memory
        if slots != list(range(self.batch)):
            memory = {k: Variable.from_numpy_array(v.d[slots]) for k, v in memory.items()}
        program = self.check if every else self.read
        scores: Array = program(*map(Variable.from_numpy_array, given), **memory)["scores"].d
        return scores[: sum(map(bool, rows))]

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

    def save(
        self, path: str | os.PathLike[str], language: bytes = b"", reader: Any = None,
        given: Sequence[Variable] = (),
    ) -> None:  # fmt: skip
        """Write the program `read` and what it shares with others; the caches are empty there.

        It takes up to `chunk` tokens of up to `batch` texts: of all where there are one or two, or
        where it is given something else for each.

        Args:
            language: See nnl.models.huggingface.stored.
            reader: A compiled function that gives what else the network is given, for one text:
                `source`, another program. given: Arrays of the kind that it takes.
        """
        read_before = {} if reader is None else reader(*given)
        memory = {
            k: Variable.from_numpy_array(np.zeros((self.batch, *v.shape[1:]), v.d.dtype))
            for k, v in read_before.items()
            if k != BEGIN
        }
        texts = None if memory or self.batch < 3 else "texts"
        others = {"before": np.zeros(self.batch), "counts": np.zeros(self.batch)}
        ranges = {"size": (1, self.chunk)}
        if texts is not None:
            others["slots"], ranges["texts"] = np.arange(self.batch), (1, self.batch)
        axes = {"tokens": (texts, "size"), **{n: (texts,) for n in others}}
        read = self._program(open=axes, ranges=ranges)
        arrays = [np.zeros((self.batch, self.chunk)), *others.values()]
        read(*[Variable.from_numpy_array(a.astype(np.int64)) for a in arrays], **memory)
        saver = Saver()
        if reader is not None:
            reader.add_to(saver, "source")
        read.add_to(saver, "read")
        saver.write(path, language=language)
