# SPDX-License-Identifier: Apache-2.0
"""Writing on from prompts: the loop around a decoder with caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from nnl import functions as F
from nnl.core.arguments.annotations import shown
from nnl.core.graph.variable import Variable
from nnl.graph.recording.compile import compile
from nnl.models.decoder import Decoder
from nnl.models.generation.beams import Search, search
from nnl.models.generation.cached import BEGIN, Cached
from nnl.models.generation.guessing import speculate
from nnl.models.generation.sampling import Sampling, generators

Tokens = list[int]
GROWTH = 256  # tokens by which caches get larger


class Writer:
    """A decoder that writes; keeps the caches of the latest texts, whose beginnings may come again.

    Args:
        network: decoder(config, tokens, ...), in the scope of its parameters.
        ends: Tokens that end a text.
    """

    def __init__(self, network: Callable[..., Any], config: Decoder, ends: Sequence[int]) -> None:
        self.network, self.config, self.ends = network, config, tuple(ends)
        self.latest: dict[str, Cached] = {}

    def cached(self, batch: int, length: int, task: str = "write") -> Cached:
        """Caches for so many texts of this length at least; each task has its own."""
        found = self.latest.get(task)
        capacity = min(-(-length // GROWTH) * GROWTH, self.config.longest)

        def long(n: int) -> list[bool]:  # what is written must not depend on what was before
            return [x.rotary is not None and x.rotary.is_long(n) for x in self.config.stack.layers]

        if (
            found is None
            or found.batch != batch
            or found.capacity < length
            or long(found.capacity) != long(capacity)
        ):
            found = self.latest[task] = Cached(self.network, self.config, batch, capacity)
        return found

    def prompts(
        self, given: Any, encode: Callable[[str], Tokens]
    ) -> tuple[list[Tokens], bool, bool]:
        """(what is written on from, whether it is one text, whether it is text)."""
        return as_prompts(given, encode)

    def check(self, prompts: Sequence[Sequence[int]], most: int) -> int:
        """How long the longest text can get.

        Raises:
            ValueError: There is nothing to write on from, a token is none, or there is no room.
        """
        c = self.config
        if most < 1:
            raise ValueError(f"generate: max_tokens is {most}, wanted at least 1")
        if not prompts:
            raise ValueError("generate: there are no prompts")
        for i, prompt in enumerate(prompts):
            if not prompt:
                raise ValueError(f"generate: prompt {i} has no tokens")
            check_tokens(prompt, c.vocabulary, i)
            if len(prompt) >= c.longest:
                raise ValueError(
                    f"generate: prompt {i} has {len(prompt)} tokens, the network has "
                    f"{c.longest} positions"
                )
        return min(max(map(len, prompts)) + most, c.longest)

    def steps(
        self, prompts: Sequence[Sequence[int]], most: int, how: Sampling, seed: int | None
    ) -> Iterator[list[int | None]]:
        """The next token of each text, again and again; None for one that has ended.

        Who is sent a row's number ends that text.
        """
        cached = self.cached(len(prompts), self.check(prompts, most))
        streams = generators(seed, len(prompts))
        texts = [list(p) for p in prompts]
        alive = [True] * len(prompts)
        scores = cached.start(texts)
        while any(alive):
            new: list[int | None] = [None] * len(texts)
            for i, text in enumerate(texts):
                if not alive[i]:
                    continue
                token = how.choose(scores[i], text, streams[i])
                if token in self.ends:
                    alive[i] = False
                    continue
                new[i] = token
                text.append(token)
                full = len(text) == self.config.longest
                alive[i] = len(text) - len(prompts[i]) < most and not full
            stopped = yield new
            for i in stopped or ():
                alive[i] = False
            if any(alive):
                rows = zip(texts, alive, strict=True)
                scores = cached.feed([text[-1:] if on else [] for text, on in rows])

    def guessed(
        self, small: Writer, prompt: Sequence[int], most: int, how: Sampling,
        rng: np.random.Generator, guesses: int,
    ) -> Iterator[int]:  # fmt: skip
        """The tokens after a prompt, guessed by a small model; see `speculate`."""
        length = self.check([prompt], most)
        if small.config.vocabulary != self.config.vocabulary:
            raise ValueError(
                f"generate: guesser has {small.config.vocabulary} tokens, wanted "
                f"{self.config.vocabulary}, as the model has"
            )
        if small.config.longest < length:
            raise ValueError(
                f"generate: guesser has {small.config.longest} positions, wanted {length}"
            )
        if guesses < 1:
            raise ValueError(f"generate: guesses is {guesses}, wanted at least 1")
        both = self.cached(1, length), small.cached(1, length, "guess")
        for n, token in enumerate(speculate(*both, prompt, how, rng, guesses), 1):
            if token in self.ends:
                return
            yield token
            if n >= length - len(prompt):
                return

    def searched(
        self, prompts: Sequence[Sequence[int]], most: int, how: Sampling, beams: int,
        length_penalty: float, early: bool,
    ) -> list[Tokens]:  # fmt: skip
        """The texts that beam search finds."""
        length = self.check(prompts, most)
        if beams < 1:
            raise ValueError(f"generate: beams is {beams}, wanted at least 1")
        cached = self.cached(len(prompts) * beams, length)
        searches = [
            Search(beams, self.ends, min(most, length - len(p)), length_penalty, early)
            for p in prompts
        ]
        return search(cached, prompts, how, searches)


class Answerer(Writer):
    """What reads a source as a whole, and then writes.

    Args:
        network: Writes: takes, besides what a decoder takes, what `read` gives.
        read: Called with the source: {name: Variable}, a row for each text.
        sources: From what is asked to (arrays that `read` takes, whether it is one, whether it is
            text).
        begin: Tokens that every answer begins with.
    """

    def __init__(
        self, network: Callable[..., Any], config: Any, ends: Sequence[int],
        read: Callable[..., Any], sources: Callable[..., Any], begin: Sequence[int],
    ) -> None:  # fmt: skip
        super().__init__(network, config, ends)
        self._function, self._read = read, compile(read)
        self._sources, self.begin = sources, list(begin)
        self._memory: dict[str, Variable] = {}
        self._count = 0

    def prompts(
        self, given: Any, encode: Callable[[str], Tokens]
    ) -> tuple[list[Tokens], bool, bool]:
        arrays, one, is_text = self._sources(given, encode)
        self._memory = self._read(*map(Variable.from_numpy_array, arrays))
        self._count = len(arrays[0])
        return [self.begin] * self._count, one, is_text

    def cached(self, batch: int, length: int, task: str = "write") -> Cached:
        found = super().cached(batch, length, task)
        found.texts = [[] for _ in range(batch)]  # of another source
        times = batch // self._count
        found.memory = {
            k: v if times == 1 else Variable.from_numpy_array(np.repeat(v.d, times, axis=0))
            for k, v in self._memory.items()
        }
        return found

    def reader(self, length: int) -> tuple[Any, list[Variable]]:
        """What reads a source, for a program, and an example of what it takes.

        It takes tokens (1, length) and counts (1,), how many of them count. Besides what the
        network is given it tells `begin`, the tokens that answers begin with.
        """
        begin = Variable.from_numpy_array(np.array(self.begin))
        begin.name = "begin"

        def read(tokens: Any, counts: Any) -> dict[str, Any]:
            ended = F.cumsum(F.one_hot(F.reshape(counts, (1, 1)), (length + 1,)), axis=1)
            found = self._function(tokens, 1.0 - F.slice(ended, (0, 0), (1, length)))
            return {**found, BEGIN: F.minimum_scalar(begin, self.config.vocabulary)}

        zeros = [np.zeros((1, length), np.int64), np.zeros(1, np.int64)]
        return compile(read), [Variable.from_numpy_array(z) for z in zeros]

    def guessed(self, *_: Any) -> Iterator[int]:
        raise ValueError("generate: a guesser cannot guess answers to a source")


def text_sources(config: Any, padding: int, multiple: int = 16) -> Callable[..., Any]:
    """The `sources` of an Answerer to texts: tokens (B, S) and keep (B, S), padded at the end."""

    def sources(given: Any, encode: Callable[[str], Tokens]) -> tuple[list[Any], bool, bool]:
        texts, one, is_text = as_prompts(given, encode)
        for i, text in enumerate(texts):
            if not text:
                raise ValueError(f"generate: prompt {i} has no tokens")
            check_tokens(text, config.vocabulary, i)
        length = -(-max(map(len, texts), default=0) // multiple) * multiple
        if not length:
            raise ValueError("generate: there are no prompts")
        ids = np.full((len(texts), length), padding)
        keep = np.zeros((len(texts), length), np.float32)
        for i, text in enumerate(texts):
            ids[i, : len(text)], keep[i, : len(text)] = text, 1
        return [ids, keep], one, is_text

    return sources


def sound_sources(config: Any, is_text: bool) -> Callable[..., Any]:
    """The `sources` of an Answerer to speech: spectrograms (B, bands, 2 frames)."""

    def sources(given: Any, encode: Callable[[str], Tokens]) -> tuple[list[Any], bool, bool]:
        sound = np.asarray(given, np.float32)
        one = sound.ndim == 2
        sound = sound[None] if one else sound
        wanted = (config.bands, 2 * config.frames)
        if sound.ndim != 3 or sound.shape[1:] != wanted or not len(sound):
            raise ValueError(
                f"generate: the sound has the shape {np.shape(given)}, wanted {wanted} or (B, "
                f"{wanted[0]}, {wanted[1]}): logarithms of a mel spectrogram"
            )
        return [sound], one, is_text

    return sources


def check_tokens(text: Sequence[int], vocabulary: int, i: int) -> None:
    """
    Raises:
        ValueError: A token of a prompt is none.
    """
    for token in text:
        if not 0 <= token < vocabulary:
            raise ValueError(
                f"generate: prompt {i} has the token {token}, wanted 0 to {vocabulary - 1}"
            )


def as_prompts(prompts: Any, encode: Callable[[str], Tokens]) -> tuple[list[Tokens], bool, bool]:
    """(prompts as tokens, whether there is one, whether it is text)."""
    one = isinstance(prompts, str) or (
        len(prompts) > 0 and isinstance(prompts[0], (int, np.integer))
    )
    each = [prompts] if one else list(prompts)
    text = bool(each) and isinstance(each[0], str)
    found = []
    for i, p in enumerate(each):
        if isinstance(p, str) != text:
            raise TypeError(f"generate: prompt {i} is {shown(p)}, wanted what prompt 0 is")
        tokens = encode(p) if text else np.asarray(p)
        if not text and (tokens.ndim != 1 or tokens.size and tokens.dtype.kind not in "iu"):
            raise TypeError(f"generate: prompt {i} is {shown(p)}, wanted a text or whole numbers")
        found.append([int(t) for t in tokens])
    return found, one, text
