# SPDX-License-Identifier: Apache-2.0
"""What a pretrained network that writes learns from, and how well it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp
from typing import Any

import numpy as np

from nnl import functions as F
from nnl.core.graph.variable import Variable
from nnl.graph.recording.compile import compile
from nnl.models.generation.generate import Writer, check_tokens

IGNORED = -100  # the label of a position whose token does not count


class Learns:
    """What a network that writes can learn; `writer`, `text` and others are of the class."""

    writer: Writer
    text: Any
    config: Any
    _encode: Callable[[str], list[int]]

    def loss(self, tokens: Any, labels: Any, positions: Any = None, train: bool = False) -> Any:
        """The mean cross entropy of the labels that count, a scalar.

        Args:
            tokens, labels, positions: (B, T), as `nnl.data.texts` gives them; see `decoder`.
            train: With the dropout that its adapters have.
        """
        each = self(tokens, labels=labels, positions=positions, train=train)  # type: ignore[operator]
        return F.sum(each) / F.maximum_scalar(F.sum(F.not_equal_scalar(labels, IGNORED)), 1)

    def lesson(self, sample: Mapping[str, Any]) -> tuple[list[int], list[bool]]:
        """The tokens of a sample, and for each whether it is to be learned.

        Args:
            sample: {"text": ...}, of which all is learned; {"prompt": ..., "completion": ...}, or
                "answer", which is learned; or {"messages": [...]}, of which what the assistant says
                is learned.
        Raises:
            ValueError: The sample is none of these, or its template does not say what is learned.
        """
        found: tuple[list[int], list[bool]] = self.text.lesson(sample, *self.writer.ends[:1])
        return found

    def perplexity(self, text: str | Sequence[int], length: int = 0, stride: int = 0) -> float:
        """$e$ to the mean cross entropy of the tokens of a text, each by what stands before it.

        A window of `length` tokens goes over the text in steps of `stride`. Each scores the tokens
        that the one before did not reach, so these have at least length - stride before them.

        Args:
            text: A text, or its tokens.
            length: Tokens of a window; all positions of the network if 0.
            stride: Below it; half of it if 0.
        Raises:
            ValueError: The text has fewer than two tokens, or a number is out of its range.
        """
        tokens = self._encode(text) if isinstance(text, str) else [int(t) for t in text]
        if len(tokens) < 2:
            raise ValueError(f"perplexity: text has {len(tokens)} tokens, wanted at least 2")
        check_tokens(tokens, self.config.vocabulary, 0)
        length = length or self.config.longest
        stride = stride or max(1, length // 2)
        if not 2 <= length <= self.config.longest or not 1 <= stride < length:
            raise ValueError(
                f"perplexity: length is {length} and stride {stride}, wanted a length from 2 to "
                f"{self.config.longest}, and a stride below it"
            )
        rows = min(length, len(tokens)) - 1
        costs = compile(lambda x, labels: self(x, labels=labels))  # type: ignore[operator]
        total, reached = 0.0, 1
        for begin in range(0, len(tokens), stride):
            end = min(begin + rows + 1, len(tokens))
            n = end - 1 - begin
            x, labels = np.zeros((1, rows), np.int64), np.full((1, rows), IGNORED)
            x[0, :n] = tokens[begin : end - 1]
            labels[0, reached - 1 - begin : n] = tokens[reached:end]
            found = costs(Variable.from_numpy_array(x), Variable.from_numpy_array(labels))
            total += float(found.d.sum(dtype=np.float64))
            reached = end
            if end == len(tokens):
                break
        return exp(total / (len(tokens) - 1))
