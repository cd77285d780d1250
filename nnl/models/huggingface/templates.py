# SPDX-License-Identifier: Apache-2.0
"""Chat templates, rendered where they can do no harm. Importing this needs jinja2."""

from __future__ import annotations

import datetime
import json
import re
import secrets
from collections.abc import Mapping
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
from jinja2.exceptions import TemplateError

__all__ = ["TemplateError", "rendered"]

MARK = secrets.token_hex(16)  # around what the model writes; nobody can say it


class Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}: what the model writes."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("marked"), [], [], body).set_lineno(line)

    def marked(self, caller: Any) -> str:
        return f"{MARK}{caller()}{MARK}"


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _as_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def rendered(template: str, names: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """What a template makes of these names, in parts: a text, and whether the model writes it.

    Raises:
        TemplateError: It is none, or refuses them.
    """
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, Generation]
    )
    environment.filters["tojson"] = _as_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    texts = re.split(MARK, environment.from_string(template).render(**names))
    return [(text, i % 2 == 1) for i, text in enumerate(texts)]
