"""A field of a configuration slice with the help text of its flag."""

from dataclasses import field
from typing import Any


def setting(default: Any, help_text: str) -> Any:
    """A field with a default and the help text of its flag."""
    return field(default=default, metadata={"help": help_text})
