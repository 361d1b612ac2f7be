"""What an output must look like, as a client asks for it. Plain values."""

from dataclasses import dataclass
from enum import Enum


class ConstraintKind(Enum):
    """How a constraint is written."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    GRAMMAR = "grammar"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """One constraint: text is the schema as JSON, the regular expression, or the grammar.

    A grammar is written in Lark's notation or in GBNF. choices: the texts of which the output is one.
    """

    kind: ConstraintKind
    text: str = ""
    choices: tuple[str, ...] = ()
