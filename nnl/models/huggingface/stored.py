# SPDX-License-Identifier: Apache-2.0
"""What a file of programs says of text: its tokenizer, and how a conversation becomes a text.

The tensor `nnl.language` holds JSON:

tokenizer  what a tokenizer.json says
special    {"bos_token": "<s>", ...}, for the template
ends       tokens that end a text
template   a chat template of Jinja; left out where there is none
turns      the same for who has no Jinja, where the template is this simple; see `turns_of`
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from os.path import commonprefix
from typing import Any

from nnl.models.huggingface.text import SPECIAL, Text, content_of, tokenizer_of

Messages = Sequence[Mapping[str, str]]
TRIED = (  # what a template is compared with its turns on; s is the system, u the user
    "u", "uau", "uauau", "su", "suau",
)  # fmt: skip
ROLES = {"s": "system", "u": "user", "a": "assistant"}


def described(text: Text, ends: Sequence[int]) -> bytes:
    """The JSON of a tokenizer."""
    found: dict[str, Any] = {
        "tokenizer": json.loads(text.tokenizer.to_str()),
        "special": {n: content_of(text.settings[n]) for n in SPECIAL if text.settings.get(n)},
        "ends": list(ends),
    }
    try:
        found["template"] = text.template()
    except ValueError:
        return json.dumps(found, ensure_ascii=False).encode()
    turns = turns_of(text)
    if turns is not None:
        found["turns"] = turns
    return json.dumps(found, ensure_ascii=False).encode()


class StoredText(Text):
    """The tokenizer of a file of programs, and its template.

    Attributes:
        ends: Tokens that end a text.
    Raises:
        ValueError: The JSON is damaged.
    """

    def __init__(self, language: bytes, where: str) -> None:
        self.where = where
        try:
            found = json.loads(language)
            tokenizer = json.dumps(found["tokenizer"])
            self.settings = dict(found["special"])
            self.ends = [int(t) for t in found["ends"]]
        except (KeyError, TypeError, ValueError, RecursionError) as e:
            raise ValueError(f"{where}: damaged: nnl.language is no text's: {e!r}") from None
        self.tokenizer = tokenizer_of(tokenizer, where, "nnl.language")
        self.chat = found.get("template")

    def template(self) -> str:
        """How a conversation becomes a text."""
        if not isinstance(self.chat, str):
            raise ValueError(f"{self.where}: the file has no chat template")
        return self.chat


def turns_of(text: Text) -> dict[str, Any] | None:
    """What stands around the messages of a conversation, where that depends on roles alone.

    Returns:
        {"open": before a first message that is not the system's, "system", "user", "assistant":
        [before, after], "answer": before the answer that is asked for, "trim": whether messages
        lose the blanks around them}; without "system" where the template refuses one. None: the
        template says something else for one of some conversations.
    """

    def around(roles: str) -> list[str]:
        parts, rest = [], text.conversation(_messages(roles))
        for i in range(len(roles)):
            before, found, rest = rest.partition(f"word{i}.")
            if not found:
                raise _Other
            parts.append(before)
        return [*parts, rest]

    try:
        first, user_answer, answer_user, asked = around("uau")
        ends = [first, answer_user]
        tried = TRIED
        try:
            system, then, _ = around("su")
            ends.append(then)
        except ValueError:
            tried = tuple(roles for roles in TRIED if "s" not in roles)
        # what is on which side of two messages is not known, only that it is the same everywhere
        before = commonprefix([end[::-1] for end in ends])[::-1]
        after = commonprefix([user_answer, asked])
        turns: dict[str, Any] = {
            "open": first.removesuffix(before),
            "user": [before, after],
            "assistant": [user_answer.removeprefix(after), answer_user.removesuffix(before)],
            "answer": asked.removeprefix(after),
            "trim": "word0. " not in text.conversation(_messages("u", " ")),
        }
        if tried is TRIED:
            turns["system"] = [system, then.removesuffix(before)]
        for roles in tried:
            for blank in ("", "\n "):
                messages = _messages(roles, blank)
                if text.conversation(messages) != conversation(turns, messages):
                    return None
    except (_Other, ValueError):
        return None
    return turns


def _messages(roles: str, blank: str = "") -> list[dict[str, str]]:
    return [{"role": ROLES[r], "content": f"{blank}word{i}.{blank}"} for i, r in enumerate(roles)]


def conversation(turns: Mapping[str, Any], messages: Messages) -> str:
    """A conversation as text, by turns; what `nnl::Generator` does."""
    text = "" if messages[0]["role"] == "system" else turns["open"]
    for m in messages:
        before, after = turns[m["role"]]
        text += before + (m["content"].strip() if turns["trim"] else m["content"]) + after
    return str(text + turns["answer"])


class _Other(Exception):
    """The template is not of this form."""
