"""What a request may ask: the one table of names and values behind every protocol.

docs/limits.md shows it. Who checks a request reads it here and keeps no number of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from common.errors import InvalidRequest
from common.rpc.server import MAX_REQUEST_BYTES
from coordinator.engine.generation import MAX_SEQUENCES


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Allowed values of a number, ends included unless `above` makes the lower one exclusive."""

    low: float
    high: float
    above: bool = False

    def allows(self, value: float) -> bool:
        """Whether the value lies inside; NaN never does."""
        return self.low <= value <= self.high and not (self.above and value == self.low)

    def __str__(self) -> str:
        lower = f"greater than {self.low}" if self.above else f"at least {self.low}"
        return f"{lower} and at most {self.high}"


MAX_JSON_DEPTH = 200
"""Nested arrays and objects of a body; the parser's own limit."""

MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_WHOLE_VOCABULARY_LOGPROBS = 1 << 20
MAX_LOGIT_BIAS = 1024
MAX_ALLOWED_TOKEN_IDS = 16384
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARACTERS = 256
MAX_SCHEMA_CHARACTERS = 65536
MAX_SCHEMA_DEPTH = 64
MAX_REGEX_CHARACTERS = 4096
MAX_GRAMMAR_CHARACTERS = 65536
MAX_CHOICE_TEXTS = 1024
MAX_CHOICE_CHARACTERS = 1024
MAX_EXTRA_ARGS = 16
MAX_EXTRA_ARG_CHARACTERS = 4096
ALL_LOGPROBS = -1
"""Asks for the log-probability of every token of the vocabulary."""
MAX_MESSAGES = 4096
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKEN_IDS = 128
MAX_REQUEST_ID_CHARACTERS = 128
MAX_QUOTED_CHARACTERS = 64
ROLES = ("system", "user", "assistant")

RANGES = {
    "n": Range(low=1, high=MAX_CHOICES),
    "max_tokens": Range(low=1, high=2**31 - 1),
    "min_tokens": Range(low=0, high=2**31 - 1),
    "max_completion_tokens": Range(low=1, high=2**31 - 1),
    "temperature": Range(low=0, high=2),
    "top_k": Range(low=-1, high=2**31 - 1),
    "top_p": Range(low=0, high=1, above=True),
    "min_p": Range(low=0, high=1),
    "seed": Range(low=-(2**63), high=2**64 - 1),
    "repetition_penalty": Range(low=0, high=100, above=True),
    "frequency_penalty": Range(low=-2, high=2),
    "presence_penalty": Range(low=-2, high=2),
    "logprobs": Range(low=ALL_LOGPROBS, high=MAX_LOGPROBS),
    "top_logprobs": Range(low=ALL_LOGPROBS, high=MAX_LOGPROBS),
    "prompt_logprobs": Range(low=ALL_LOGPROBS, high=MAX_LOGPROBS),
    "logit_bias": Range(low=-100, high=100),
    "priority": Range(low=-(2**31), high=2**31 - 1),
}


def limits() -> Iterator[tuple[str, str]]:
    """Each field with its limit in words."""
    yield "the request", f"at most {MAX_REQUEST_BYTES >> 20} MiB"
    yield "JSON", f"at most {MAX_JSON_DEPTH} arrays and objects inside each other"
    yield "request_id", f"at most {MAX_REQUEST_ID_CHARACTERS} visible ASCII characters"
    yield "prompt", "token ids of the vocabulary; at most one token less than the model's length"
    yield "prompts x n", f"at most {MAX_SEQUENCES} outputs, and never more than --max-waiting"
    yield "messages", f"at most {MAX_MESSAGES}, with a role of {', '.join(ROLES)}"
    for field, allowed in RANGES.items():
        if field != "logit_bias":
            yield field, str(allowed)
    yield (
        "logprobs -1, prompt_logprobs -1",
        f"at most {MAX_WHOLE_VOCABULARY_LOGPROBS} log-probabilities a request, of all its tokens",
    )
    yield (
        "json_schema",
        f"an object of at most {MAX_SCHEMA_CHARACTERS} characters, at most {MAX_SCHEMA_DEPTH} "
        "arrays and objects inside each other",
    )
    yield "regex", f"1 to {MAX_REGEX_CHARACTERS} characters"
    yield "grammar", f"1 to {MAX_GRAMMAR_CHARACTERS} characters"
    yield "choice", f"1 to {MAX_CHOICE_TEXTS} texts of 1 to {MAX_CHOICE_CHARACTERS} characters"
    yield "stop", f"at most {MAX_STOP_STRINGS} texts of 1 to {MAX_STOP_CHARACTERS} characters"
    yield "stop_token_ids", f"at most {MAX_STOP_TOKEN_IDS} ids of the vocabulary"
    biases = RANGES["logit_bias"]
    yield "logit_bias", f"at most {MAX_LOGIT_BIAS} tokens of the vocabulary, each {biases}"
    yield "allowed_token_ids", f"1 to {MAX_ALLOWED_TOKEN_IDS} ids of the vocabulary"
    yield "bad_words", f"at most {MAX_BAD_WORDS} texts of 1 to {MAX_BAD_WORD_CHARACTERS} characters"
    yield (
        "vllm_xargs",
        f"at most {MAX_EXTRA_ARGS} arguments of custom logits processors, each of at most "
        f"{MAX_EXTRA_ARG_CHARACTERS} characters of JSON",
    )


def quoted(text: str) -> str:
    """A client's text as an error may repeat it: its beginning, however long it is."""
    return f"{text[:MAX_QUOTED_CHARACTERS]!r}{'...' if len(text) > MAX_QUOTED_CHARACTERS else ''}"


def check_range(field: str, value: float | None) -> None:
    """Refuse a number outside the field's range; None stands for the default and passes."""
    if value is not None and not RANGES[field].allows(value):
        raise InvalidRequest(f"{field} must be {RANGES[field]}, not {value}", param=field)


def check_count(field: str, count: int, *, most: int, things: str) -> None:
    """Refuse a list that is too long."""
    if count > most:
        raise InvalidRequest(
            f"{field} holds {count} {things}, at most {most} are allowed", param=field
        )


def check_length(field: str, text: str, *, most: int) -> None:
    """Refuse a text that is too long."""
    if len(text) > most:
        raise InvalidRequest(
            f"{field}: {len(text)} characters are too many, at most {most} are allowed", param=field
        )
