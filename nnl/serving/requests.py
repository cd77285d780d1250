# SPDX-License-Identifier: Apache-2.0
"""What clients of OpenAI's HTTP interface ask for: bodies of JSON, checked field by field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nnl.models.generation.sampling import Sampling

MOST_CHOICES, MOST_STOPS, MOST_PROMPTS = 16, 16, 256


class Refused(Exception):
    """A request that gets an error.

    Attributes:
        status, kind, param, code: As OpenAI's errors have them; the text is the message.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        status: int = 400,
        kind: str = "invalid_request_error",
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.param, self.status, self.kind, self.code = param, status, kind, code

    def to_json(self) -> dict[str, Any]:
        """The body of the answer."""
        text = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return {"error": text}


# What would change the answer and is not there: refused where it asks for something.
MISSING = {
    "logprobs": (None, False), "top_logprobs": (None, 0), "tools": (None, []),
    "functions": (None, []), "tool_choice": (None, "none", "auto"), "logit_bias": (None, {}),
    "suffix": (None, ""), "echo": (None, False), "best_of": (None, 1),
    "frequency_penalty": (None, 0), "presence_penalty": (None, 0), "modalities": (None, ["text"]),
    "response_format": (None, {"type": "text"}), "audio": (None,), "prediction": (None,),
}  # fmt: skip


class Body:
    """The fields of a request; those that are null are as if they were left out."""

    def __init__(self, raw: bytes) -> None:
        try:
            fields = json.loads(raw)
        except (ValueError, RecursionError) as e:
            raise Refused(f"the body is no JSON: {str(e)[:200]}") from None
        if not isinstance(fields, dict):
            raise Refused(f"the body is {type(fields).__name__}, wanted an object")
        self.fields: dict[str, Any] = {k: v for k, v in fields.items() if v is not None}
        for name, nothing in MISSING.items():
            if name in self.fields and self.fields[name] not in nothing:
                raise Refused(f"{name} is not supported", name, code="unsupported_parameter")

    def of(self, name: str, kinds: type | tuple[type, ...], default: Any, wanted: str) -> Any:
        """A field of a kind; bools are no numbers."""
        value = self.fields.get(name, default)
        if value is default:
            return value
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            raise Refused(f"{name} is {short(value)}, wanted {wanted}", name)
        return value

    def integer(self, name: str, default: Any, least: int, most: int) -> Any:
        """A whole number in a range."""
        value = self.of(name, int, default, "a whole number")
        if value is not None and value is not default and not least <= value <= most:
            raise Refused(f"{name} is {value}, wanted {least} to {most}", name)
        return value

    def flag(self, name: str) -> bool:
        """True or false; false if left out."""
        return bool(self.of(name, bool, False, "true or false"))

    def sampling(self) -> Sampling:
        """How tokens are chosen; temperature is 1 if left out, as OpenAI has it."""
        fields = {
            name: self.of(name, (int, float), default, "a number")
            for name, default in (
                ("temperature", 1.0), ("top_p", 1.0), ("min_p", 0.0), ("repetition_penalty", 1.0),
            )
        }  # fmt: skip
        try:
            return Sampling(top_k=self.integer("top_k", 0, 0, 2**31), **fields)
        except ValueError as e:
            text = str(e).removeprefix("generate: ")
            raise Refused(text, text.split()[0]) from None

    def stops(self) -> list[str]:
        """Texts that end what is written."""
        value = self.of("stop", (str, list), [], "a text or a list of texts")
        words = [value] if isinstance(value, str) else value
        if len(words) > MOST_STOPS or not all(isinstance(w, str) and w for w in words):
            raise Refused(f"stop is {short(value)}, wanted up to {MOST_STOPS} texts", "stop")
        return list(words)

    def prompts(self) -> list[str | list[int]]:
        """One or several prompts, as texts or as tokens."""
        given = self.fields.get("prompt", self.fields.get("input"))
        name = "prompt" if "prompt" in self.fields else "input"
        one = isinstance(given, str) or (
            isinstance(given, list) and bool(given) and all(type(t) is int for t in given)
        )
        found = [given] if one else given
        if not isinstance(found, list) or not 0 < len(found) <= MOST_PROMPTS:
            wanted = f"a text, tokens, or a list of up to {MOST_PROMPTS} of such"
            raise Refused(f"{name} is {short(given)}, wanted {wanted}", name)
        for p in found:
            tokens = isinstance(p, list) and p and all(type(t) is int for t in p)
            if not tokens and not (isinstance(p, str) and p):
                raise Refused(f"{name} holds {short(p)}, wanted a text or tokens", name)
        return found

    def messages(self) -> list[Mapping[str, Any]]:
        """A conversation. Contents in parts become one text."""
        given = self.of("messages", list, None, "a list")
        if not given:
            raise Refused("messages is missing or empty", "messages")
        return [self._message(i, m) for i, m in enumerate(given)]

    def _message(self, i: int, message: Any) -> Mapping[str, Any]:
        name = f"messages[{i}]"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Refused(f"{name} is {short(message)}, wanted an object with a role", "messages")
        content = message.get("content", "")
        if isinstance(content, list):
            parts = [
                p.get("text") if isinstance(p, dict) and p.get("type") == "text" else None
                for p in content
            ]
            content = "".join(p for p in parts if isinstance(p, str)) if all(
                isinstance(p, str) for p in parts
            ) else None  # fmt: skip
        if not isinstance(content, str):
            raise Refused(f"{name} has a content that is no text", "messages")
        return {**message, "content": content}


def short(value: Any) -> str:
    """A value for a message: what JSON would say, cut."""
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
