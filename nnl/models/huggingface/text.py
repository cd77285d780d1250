# SPDX-License-Identifier: Apache-2.0
"""Text to tokens and back, and conversations to text, by the files beside a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from os.path import commonprefix
from pathlib import Path
from typing import Any

from nnl.converters.weights.folder import read_json

INSTALL = "pip install 'nnl[language]'"
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")


class Text:
    """The tokenizer of a folder, and its templates.

    Args:
        folder: Has tokenizer.json, and may have tokenizer_config.json and chat_template.jinja.
    Attributes:
        tokenizer: Of the package tokenizers.
    """

    def __init__(self, folder: Path, where: str) -> None:
        self.where, self.folder = where, folder
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ValueError(f"{where}: there is no {path}, which says what the tokens are")
        self.tokenizer = tokenizer_of(path.read_bytes(), where, str(path))
        file = folder / "tokenizer_config.json"
        self.settings = read_json(file, where) if file.is_file() else {}

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The tokens of a text, with those that begin and end one if `special`."""
        found: list[int] = self.tokenizer.encode(text, add_special_tokens=special).ids
        return found

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens, without the special ones."""
        return str(self.tokenizer.decode([int(t) for t in tokens], skip_special_tokens=True))

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """The text that each token adds to those before it, special ones too."""
        texts = [
            str(self.tokenizer.decode([*tokens[:n]], skip_special_tokens=False))
            for n in range(len(tokens) + 1)
        ]
        return [b[len(commonprefix([a, b])) :] for a, b in pairwise(texts)]

    def template(self) -> str:
        """How a conversation becomes a text.

        Raises:
            ValueError: The folder does not say it.
        """
        file = self.folder / "chat_template.jinja"
        if file.is_file():
            return file.read_text(encoding="utf-8")
        found = self.settings.get("chat_template")
        if isinstance(found, list):  # several by name
            named = {t.get("name"): t.get("template") for t in found if isinstance(t, Mapping)}
            found = named.get("default")
        if not isinstance(found, str):
            raise ValueError(f"{self.where}: {self.folder} has no chat template")
        return found

    def conversation(
        self, messages: Sequence[Mapping[str, Any]], answer: bool = True, **more: Any
    ) -> str:
        """A conversation as the model knows it.

        Args:
            messages: [{"role": "user", "content": "..."}, ...].
            answer: End where the model's answer begins.
            more: What the template asks for besides, such as tools.
        Raises:
            ValueError: The template refuses it, or there is none.
        """
        return "".join(text for text, _ in self.parts(messages, answer, **more))

    def parts(
        self, messages: Sequence[Mapping[str, Any]], answer: bool = True, **more: Any
    ) -> list[tuple[str, bool]]:
        """A conversation in parts, each with whether its template says that the model writes it."""
        try:
            from nnl.models.huggingface.templates import TemplateError, rendered
        except ImportError as e:
            raise ImportError(f"{self.where}: chat templates are read by jinja2: {INSTALL}") from e
        names = {n: content_of(self.settings[n]) for n in SPECIAL if self.settings.get(n)}
        names |= {"messages": messages, "add_generation_prompt": answer, **more}
        try:
            return rendered(self.template(), names)
        except TemplateError as e:
            raise ValueError(f"{self.where}: the chat template refuses the messages: {e}") from e

    def lesson(self, sample: Mapping[str, Any], end: int | None = None) -> tuple[list[int], Any]:
        """The tokens of a sample, and for each whether it is to be learned.

        Args:
            sample: {"text": ...}, of which all is learned; {"prompt": ..., "completion": ...}, or
                "answer", which is learned; or {"messages": [...]}, of which what the assistant says
                is learned, as far as the template says, else up to the end of its messages.
            end: A token that ends texts and answers.
        Raises:
            ValueError: The sample is none of these, or its template does not say what is learned.
        """
        ends = [] if end is None else [end]
        if isinstance(sample.get("messages"), (list, tuple)):
            return self._of_conversation(sample["messages"])
        answer = sample.get("completion", sample.get("answer"))
        if isinstance(sample.get("prompt"), str) and isinstance(answer, str):
            prompt = self.encode(sample["prompt"])
            said = self.encode(answer, special=False) + ends
            return prompt + said, [False] * len(prompt) + [True] * len(said)
        if isinstance(sample.get("text"), str):
            tokens = self.encode(sample["text"])
            tokens += ends if tokens[-1:] != ends else []
            return tokens, [True] * len(tokens)
        raise ValueError(
            f"a sample has {', '.join(map(repr, sample)) or 'nothing'}; wanted texts as 'text', as "
            "'prompt' with 'completion' or 'answer', or a list 'messages'"
        )

    def _of_conversation(self, messages: Sequence[Any]) -> tuple[list[int], list[bool]]:
        if not all(isinstance(m, Mapping) and isinstance(m.get("role"), str) for m in messages):
            raise ValueError("messages has an entry without a role")
        parts = self.parts(messages, answer=False)
        text = "".join(part for part, _ in parts)
        if any(own for _, own in parts):
            ends = [0, *accumulate(len(part) for part, _ in parts)]
            spans = [(a, b) for (_, own), a, b in zip(parts, ends, ends[1:], strict=False) if own]
        else:
            spans = []
            for i, message in enumerate(messages):
                if message["role"] == "assistant":
                    before = self.conversation(messages[:i])
                    after = self.conversation(messages[: i + 1], answer=False).rstrip()
                    if not (after.startswith(before) and text.startswith(after)):
                        raise ValueError(
                            f"the chat template writes message {i} in another way at the end of a "
                            "conversation: what it says cannot be told from the rest"
                        )
                    spans.append((len(before), len(after)))
        found = self.tokenizer.encode(text, add_special_tokens=False)
        learned = [any(a < end and begin < b for a, b in spans) for begin, end in found.offsets]
        return found.ids, learned


def tokenizer_of(source: str | bytes, where: str, name: str) -> Any:
    """That of the package tokenizers, from what a tokenizer.json says.

    Raises:
        ValueError: It is none.
    """
    try:
        import tokenizers
    except ImportError as e:
        raise ImportError(f"{where}: tokenizer.json is read by tokenizers: {INSTALL}") from e
    try:
        found = tokenizers.Tokenizer.from_buffer(
            source.encode() if isinstance(source, str) else source
        )
    except Exception as e:  # what the package raises has no class of its own
        raise ValueError(f"{where}: {name} is no tokenizer: {e}") from e
    found.no_padding()
    found.no_truncation()
    return found


def end_of(folder: Path, where: str) -> list[int]:
    """The token that ends a text, as tokenizer_config.json names it; none if it does not.

    Models that talk may end their turns with it, and have others in generation_config.json.
    """
    file = folder / "tokenizer_config.json"
    settings = read_json(file, where) if file.is_file() else {}
    end, added = content_of(settings.get("eos_token")), settings.get("added_tokens_decoder")
    if not isinstance(end, str) or not isinstance(added, Mapping):
        return []
    return [int(i) for i, token in added.items() if content_of(token) == end and i.isdecimal()]


def content_of(token: Any) -> Any:
    """The text of a special token, which may be described."""
    return token.get("content") if isinstance(token, Mapping) else token
