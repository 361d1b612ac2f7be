"""Body fields without a model behind them: known ones that are refused or harmless, and unknown ones.

Refusing beats ignoring wherever ignoring would change the answer in silence.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

from common.errors import InvalidRequest

logger = logging.getLogger(__name__)

NOTHING: tuple[Any, ...] = (None,)
NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "best_of": (None, 1),
    "echo": (None, False),
    "use_beam_search": (None, False),
    "length_penalty": (None, 1),
    "logits_processors": (None, []),
    "truncate_prompt_tokens": NOTHING,
    "spaces_between_special_tokens": (None, True),
    "include_stop_str_in_output": (None, False),
    "suffix": (None, ""),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "tool_calls": (None, []),
    "tool_call_id": NOTHING,
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "modalities": (None, ["text"]),
    "audio": NOTHING,
    "prediction": NOTHING,
    "moderation": NOTHING,
    "reasoning_effort": (None, "none"),
    "verbosity": NOTHING,
    "web_search_options": NOTHING,
}
"""Fields that are not built, with the values that ask for nothing."""

HARMLESS_FIELDS = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "parallel_tool_calls",
    }
)
"""Fields that never change an answer: bookkeeping of OpenAI's own service."""


MAX_NAMES = 256
MAX_NAME_CHARACTERS = 64
OTHER_NAMES = "(other)"


class UnknownFields:
    """Counts body fields nobody here knows; they are ignored, as clients of all makes expect.

    Clients choose the names: long ones, and those that come when many are known, are counted together.
    """

    def __init__(self) -> None:
        """Begin at zero."""
        self.count_by_name: Counter[str] = Counter()

    def check(self, extra: Mapping[str, Any]) -> None:
        """Refuse known fields that ask for something not built, and count the unknown ones.

        Raises InvalidRequest naming the field.
        """
        for name, value in extra.items():
            if name in NEUTRAL_VALUES:
                _check_neutral(name, value)
            elif name not in HARMLESS_FIELDS:
                self._count(name)

    def _count(self, name: str) -> None:
        is_full = len(self.count_by_name) >= MAX_NAMES and name not in self.count_by_name
        if is_full or len(name) > MAX_NAME_CHARACTERS:
            name = OTHER_NAMES
        self.count_by_name[name] += 1
        logger.debug("unknown body field ignored", extra={"field": name})


def _check_neutral(name: str, value: Any) -> None:
    if value not in NEUTRAL_VALUES[name]:
        raise InvalidRequest(f"{name} is not supported: leave it out", param=name)
