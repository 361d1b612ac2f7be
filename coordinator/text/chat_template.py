"""Messages of a conversation -> the text the model was trained on, by the model's own jinja template.

Follows the conventions under which such templates are written for `transformers`, without it.
Templates come with checkpoints, so they run in jinja's sandbox.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from common.errors import InvalidRequest, ModelError


class ChatTemplate:
    """One compiled template with the special tokens it may name."""

    def __init__(
        self,
        source: str,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Compile the template; raises ModelError when it is not valid jinja."""
        environment = _environment(now)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ModelError(f"the model's chat template does not compile: {error}") from error
        self._tokens = {"bos_token": bos_token or "", "eos_token": eos_token or ""}

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Render messages of `role` and `content`, and the opening of the assistant's answer.

        Raises InvalidRequest with the template's own words when it refuses the conversation.
        """
        try:
            return self._template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._tokens,
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise InvalidRequest(
                f"messages do not fit the model's chat template: {error}", param="messages"
            ) from error


class _GenerationBlocks(Extension):
    """Accepts `{% generation %}`, which marks the assistant's words for training, as plain text."""

    tags = {"generation"}  # noqa: RUF012 - jinja declares it as a plain class attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Replace the block by its body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda layout: now().strftime(layout)
    return environment


def _to_json(value: Any, *, ensure_ascii: bool = False, indent: int | None = None) -> str:
    # jinja's own filter escapes HTML characters, which models were not trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
