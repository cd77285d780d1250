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

    def said(roles: str, answer: bool = True, blank: str = "") -> str:
        messages = [
            {"role": ROLES[r], "content": f"{blank}word{i}.{blank}"} for i, r in enumerate(roles)
        ]
        return text.conversation(messages, answer)

    def around(roles: str, answer: bool = True) -> list[str]:
        parts, rest = [], said(roles, answer)
        for i in range(len(roles)):
            before, found, rest = rest.partition(f"word{i}.")
            if not found:
                raise _Other
            parts.append(before)
        return [*parts, rest]

    def without(part: str, begin: str = "", end: str = "") -> str:
        if not (part.startswith(begin) and part.endswith(end)):
            raise _Other
        return part[len(begin) : len(part) - len(end)]

    try:
        after_user = around("u", False)[-1]
        first, user_answer, answer_user, asked = around("uau")
        after_answer = around("ua", False)[-1]
        before_user = without(answer_user, after_answer)
        turns: dict[str, Any] = {
            "open": without(first, "", before_user),
            "user": [before_user, after_user],
            "assistant": [without(user_answer, after_user), after_answer],
            "answer": without(asked, after_user),
        }
        tried = TRIED
        try:
            begin, then, _ = around("su")
            turns["system"] = [begin, without(then, "", before_user)]
        except ValueError:
            tried = tuple(roles for roles in TRIED if "s" not in roles)
        turns["trim"] = "word0. " not in said("u", True, " ")
        for roles in tried:
            for blank in ("", "\n "):
                messages = [
                    {"role": ROLES[r], "content": f"{blank}word{i}.{blank}"}
                    for i, r in enumerate(roles)
                ]
                if said(roles, True, blank) != conversation(turns, messages):
                    return None
    except (_Other, ValueError):
        return None
    return turns


def conversation(turns: Mapping[str, Any], messages: Messages) -> str:
    """A conversation as text, by turns; what `nnl::Generator` does."""
    text = "" if messages[0]["role"] == "system" else turns["open"]
    for m in messages:
        before, after = turns[m["role"]]
        text += before + (m["content"].strip() if turns["trim"] else m["content"]) + after
    return str(text + turns["answer"])


class _Other(Exception):
    """The template is not of this form."""
