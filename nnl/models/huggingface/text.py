# SPDX-License-Identifier: Apache-2.0
"""Text to tokens and back, and conversations to text, by the files beside a checkpoint."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
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
        try:
            import jinja2
            import jinja2.ext
            import jinja2.sandbox
        except ImportError as e:
            raise ImportError(f"{self.where}: chat templates are read by jinja2: {INSTALL}") from e

        def refuse(message: str) -> None:
            raise jinja2.exceptions.TemplateError(message)

        def as_json(value: Any, indent: int | None = None) -> str:
            return json.dumps(value, ensure_ascii=False, indent=indent)

        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = as_json
        environment.globals["raise_exception"] = refuse
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        names = {n: content_of(self.settings[n]) for n in SPECIAL if self.settings.get(n)}
        try:
            return environment.from_string(self.template()).render(
                messages=messages, add_generation_prompt=answer, **names, **more
            )
        except jinja2.exceptions.TemplateError as e:
            raise ValueError(f"{self.where}: the chat template refuses the messages: {e}") from e


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


def content_of(token: Any) -> Any:
    """The text of a special token, which may be described."""
    return token.get("content") if isinstance(token, Mapping) else token
