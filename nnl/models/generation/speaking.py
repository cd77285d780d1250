# SPDX-License-Identifier: Apache-2.0
"""What a pretrained network that writes can be asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nnl.core.graph.variable import Variable
from nnl.core.settings.context import using
from nnl.models.generation.generate import Tokens, Writer
from nnl.models.generation.looking import attention_weights
from nnl.models.generation.sampling import Sampling, generators


class Said:
    """The text of tokens as they come, up to the first stop word.

    Attributes:
        tokens, text: All so far.
        stopped: Whether a stop word has come; the text ends before it.
    """

    def __init__(self, decode: Callable[[Iterable[int]], str], stop: Sequence[str]) -> None:
        self.decode, self.stop = decode, stop
        self.tokens: Tokens = []
        self.text, self.stopped, self._told = "", False, 0

    def add(self, token: int) -> str:
        """What is certain to be text now, and was not before."""
        self.tokens.append(token)
        self.text = self.decode(self.tokens)
        places = [at for word in self.stop if (at := self.text.find(word)) >= 0]
        if places:
            self.text, self.stopped = self.text[: min(places)], True
        return self._new(self.text if self.stopped else self._certain())

    def rest(self) -> str:
        """What was held back."""
        return self._new(self.text)

    def _certain(self) -> str:
        text = self.text.rstrip("\ufffd")  # of a character, some bytes are missing yet
        longest = max(map(len, self.stop), default=1) - 1
        for n in range(min(longest, len(text)), 0, -1):
            if any(word.startswith(text[-n:]) for word in self.stop):
                return text[:-n]
        return text

    def _new(self, text: str) -> str:
        new = text[self._told :]
        self._told = max(self._told, len(text))
        return new


class Speaks:
    """What a network that writes can be asked for; `writer` and `text` are of the class."""

    writer: Writer
    text: Any
    __call__: Callable[..., Any]

    def generate(
        self,
        prompts: Any,
        max_tokens: int = 128,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        beams: int = 1,
        length_penalty: float = 1.0,
        early_stopping: bool = False,
        guesser: Speaks | None = None,
        guesses: int = 4,
    ) -> Any:
        """Write on from prompts.

        Args:
            prompts: A text or its tokens, or several, of any lengths.
            max_tokens: The most to write; positions may end earlier.
            temperature: 0 writes the most probable token, others draw from scores divided by it.
            top_k, top_p, min_p, repetition_penalty: See `Sampling`.
            seed: Of what is drawn; the same text comes of the same seed, alone or beside others.
            stop: Texts that end what is written, and are not part of it.
            beams: More than 1 searches for the most probable text, and draws nothing.
            length_penalty, early_stopping: Of this search: see `Search`.
            guesser: A smaller network of the same vocabulary, which guesses `guesses` tokens at a
                time: the same distribution, sooner.
        Returns:
            What is written, without what ends it: text for text, tokens for tokens, a list for
            several.
        Raises:
            ValueError: A prompt is empty, has a token that is none, or leaves no position free; an
                argument is out of range.
            TypeError: The prompts are neither texts nor whole numbers.
        """
        tokens, one, is_text = self.writer.prompts(prompts, self._encode)
        how = Sampling(temperature, top_k, top_p, min_p, repetition_penalty)
        said = [self._said(stop, is_text) for _ in tokens]
        if beams != 1:
            if temperature or guesser is not None:
                raise ValueError("generate: beam search takes neither temperature nor guesser")
            search = (beams, length_penalty, early_stopping)
            for s, found in zip(
                said, self.writer.searched(tokens, max_tokens, how, *search), strict=True
            ):
                for token in found:
                    if not s.stopped:
                        s.add(token)
        elif guesser is not None:
            for s, prompt, rng in zip(said, tokens, generators(seed, len(tokens)), strict=True):
                for token in self.writer.guessed(
                    guesser.writer, prompt, max_tokens, how, rng, guesses
                ):
                    s.add(token)
                    if s.stopped:
                        break
        else:
            steps = self.writer.steps(tokens, max_tokens, how, seed)
            self._collect(steps, said)
        found = [s.text if is_text else s.tokens for s in said]
        return found[0] if one else found

    def stream(
        self, prompt: Any, max_tokens: int = 128, *, seed: int | None = None,
        stop: str | Sequence[str] = (), **sampling: Any,
    ) -> Iterator[Any]:  # fmt: skip
        """What `generate` writes after one prompt, in pieces: texts, or tokens."""
        tokens, one, is_text = self.writer.prompts(prompt, self._encode)
        if not one:
            raise ValueError(f"stream: got {len(tokens)} prompts, wanted one")
        steps = self.writer.steps(tokens, max_tokens, Sampling(**sampling), seed)
        said = self._said(stop, is_text)
        for (token,) in steps:
            if token is None:
                break
            piece = said.add(token)
            if not is_text and not said.stopped:
                yield token
            elif is_text and piece:
                yield piece
            if said.stopped:
                return
        if is_text and (piece := said.rest()):
            yield piece

    def chat(self, messages: Sequence[Mapping[str, Any]], max_tokens: int = 128, **how: Any) -> str:
        """The answer to a conversation, by the folder's template.

        Args:
            messages: [{"role": "user", "content": "..."}, ...].
            how: As of `generate`.
        Raises:
            ValueError: There is no template, or it refuses the messages.
        """
        prompt = self.text.encode(self.text.conversation(messages), special=False)
        return str(self.text.decode(self.generate(prompt, max_tokens, **how)))

    def attention(self, prompt: Any) -> tuple[Tokens, Any]:
        """Where each token of a text looks: its tokens, and weights (layers, heads, T, T).

        Row i of a head sums to 1 over the tokens that the i-th one sees, itself among them.

        Args:
            prompt: A text or its tokens.
        Raises:
            ValueError: It is empty, too long, or has a token that is none.
        """
        tokens, one, _ = self.writer.prompts(prompt, self._encode)
        if not one:
            raise ValueError(f"attention: got {len(tokens)} prompts, wanted one")
        self.writer.check(tokens, 1)
        with using(auto_forward=False):
            y = self(Variable.from_numpy_array(np.array(tokens)))
        return tokens[0], np.concatenate(attention_weights(y))

    def _collect(self, steps: Any, said: Sequence[Said]) -> None:
        ended: list[int] = []
        try:
            while True:
                new = steps.send(ended or None)
                ended = []
                for i, token in enumerate(new):
                    if token is not None:
                        said[i].add(token)
                        if said[i].stopped:
                            ended.append(i)
        except StopIteration:
            return

    def _said(self, stop: str | Sequence[str], is_text: bool) -> Said:
        words = [stop] if isinstance(stop, str) else [*stop]
        if not all(isinstance(w, str) and w for w in words):
            raise ValueError(f"generate: stop is {stop!r:.60}, wanted texts that are not empty")
        return Said(self._decode if is_text or words else lambda tokens: "", words)

    def _encode(self, text: str) -> Tokens:
        found: Tokens = self.text.encode(text)
        return found

    def _decode(self, tokens: Iterable[int]) -> str:
        return str(self.text.decode(tokens))
