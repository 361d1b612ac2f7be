"""What a request may ask: the one table behind every protocol, and the checks that read it.

Everything a worker could choke on is refused here, naming the field and its limit, before any
worker sees the request.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from common.errors import InvalidRequest, NotFound
from common.requests import Request, SamplingParams, StopParams
from coordinator.engine.generation import ChatTurn, GenerationInput, ServedModel


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


MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKEN_IDS = 128
MAX_REQUEST_ID_CHARACTERS = 128
MIN_SAMPLING_TEMPERATURE = 0.01
MIN_TOP_P = float(np.finfo(np.float32).tiny)
ROLES = ("system", "user", "assistant")

RANGES = {
    "max_tokens": Range(low=1, high=2**31 - 1),
    "max_completion_tokens": Range(low=1, high=2**31 - 1),
    "temperature": Range(low=0, high=2),
    "top_k": Range(low=-1, high=2**31 - 1),
    "top_p": Range(low=0, high=1, above=True),
    "min_p": Range(low=0, high=1),
    "seed": Range(low=-(2**63), high=2**64 - 1),
    "logprobs": Range(low=0, high=MAX_LOGPROBS),
    "top_logprobs": Range(low=0, high=MAX_LOGPROBS),
    "priority": Range(low=-(2**31), high=2**31 - 1),
}
RANGED_FIELDS = (
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "logprobs",
    "priority",
)


def check_range(field: str, value: float | None) -> None:
    """Refuse a number outside the field's range; None stands for the default and passes."""
    if value is not None and not RANGES[field].allows(value):
        raise InvalidRequest(f"{field} must be {RANGES[field]}, not {value}", param=field)


def check_input(asked: GenerationInput, *, model: ServedModel) -> None:
    """Check everything that can be checked before the prompt is tokenized.

    Raises NotFound for another model, InvalidRequest naming field and limit otherwise.
    """
    if asked.model not in ("", model.name):
        raise NotFound(f"there is no model {asked.model!r}; {model.name!r} is served")
    _check_length("request_id", asked.request_id, most=MAX_REQUEST_ID_CHARACTERS)
    for field in RANGED_FIELDS:
        check_range(field, getattr(asked, field))
    _check_stop(asked.stop)
    if len(asked.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest(
            f"stop_token_ids holds {len(asked.stop_token_ids)} ids, at most {MAX_STOP_TOKEN_IDS} are allowed",
            param="stop_token_ids",
        )
    _check_vocabulary("stop_token_ids", asked.stop_token_ids, model=model)
    _check_prompt(asked.prompt, model=model)


def build_request(
    asked: GenerationInput,
    token_ids: tuple[int, ...],
    *,
    model: ServedModel,
    draw_seed: Callable[[], int],
) -> Request:
    """Make the request the scheduler takes: every choice that was left to us is made here.

    token_ids is the tokenized prompt. Raises InvalidRequest when it leaves no room for output.
    """
    room = model.max_model_len - len(token_ids)
    if not token_ids:
        raise InvalidRequest("prompt has no tokens, at least 1 is needed", param="prompt")
    if room < 1:
        raise InvalidRequest(
            f"prompt has {len(token_ids)} tokens; the model takes at most {model.max_model_len - 1},"
            f" so that one of its {model.max_model_len} is left for the output",
            param="prompt",
        )
    return Request(
        request_id=asked.request_id,
        prompt_token_ids=token_ids,
        sampling=_sampling(asked, model=model, draw_seed=draw_seed),
        stopping=StopParams(
            max_tokens=min(asked.max_tokens or room, room),
            stop_token_ids=frozenset(asked.stop_token_ids),
            ignore_eos=asked.ignore_eos,
            stop=asked.stop,
        ),
        priority=asked.priority or 0,
    )


def _check_prompt(
    prompt: str | tuple[int, ...] | tuple[ChatTurn, ...], *, model: ServedModel
) -> None:
    if not prompt:
        raise InvalidRequest("prompt is empty, at least one token is needed", param="prompt")
    if isinstance(prompt, str):
        _check_characters("prompt", prompt)
        return
    _check_vocabulary("prompt", [part for part in prompt if isinstance(part, int)], model=model)
    for part in prompt:
        if isinstance(part, ChatTurn):
            _check_turn(part)


def _check_turn(turn: ChatTurn) -> None:
    if turn.role not in ROLES:
        raise InvalidRequest(
            f"messages: role must be one of {', '.join(ROLES)}, not {turn.role!r}",
            param="messages",
        )
    _check_characters("messages", turn.content)


def _check_characters(field: str, text: str) -> None:
    """Refuse half of a surrogate pair, which JSON can spell and no tokenizer can read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{field}: position {error.start} holds half of a surrogate pair, which is no character",
            param=field,
        ) from error


def _check_vocabulary(field: str, token_ids: Sequence[int], *, model: ServedModel) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < model.vocab_size:
            raise InvalidRequest(
                f"{field}: token id {token_id} is outside the vocabulary, 0 to {model.vocab_size - 1}",
                param=field,
            )


def _check_stop(stop: tuple[str, ...]) -> None:
    if len(stop) > MAX_STOP_STRINGS:
        raise InvalidRequest(
            f"stop holds {len(stop)} strings, at most {MAX_STOP_STRINGS} are allowed", param="stop"
        )
    for text in stop:
        if not text:
            raise InvalidRequest("stop holds an empty string, which is everywhere", param="stop")
        _check_length("stop", text, most=MAX_STOP_CHARACTERS)
        _check_characters("stop", text)


def _check_length(field: str, text: str, *, most: int) -> None:
    if len(text) > most:
        raise InvalidRequest(
            f"{field}: {len(text)} characters are too many, at most {most} are allowed", param=field
        )


def _sampling(
    asked: GenerationInput, *, model: ServedModel, draw_seed: Callable[[], int]
) -> SamplingParams:
    seed = draw_seed() if asked.seed is None else asked.seed
    return SamplingParams(
        temperature=_temperature(asked.temperature),
        top_k=min(max(asked.top_k or 0, 0), model.vocab_size),
        top_p=_top_p(asked.top_p),
        min_p=_float32(asked.min_p or 0.0),
        seed=seed % 2**64,
        num_logprobs=asked.logprobs,
    )


def _temperature(asked: float | None) -> float:
    """The temperature to sample at; a small one is raised, lest scaled logits overflow."""
    if asked is None:
        return 1.0
    return _float32(max(asked, MIN_SAMPLING_TEMPERATURE)) if asked > 0 else 0.0


def _top_p(asked: float | None) -> float:
    """The nucleus mass, kept above 0 where rounding would make it 0."""
    return 1.0 if asked is None else max(_float32(asked), MIN_TOP_P)


def _float32(value: float) -> float:
    """The value the wire carries, so that every placement of the workers draws the same tokens."""
    return float(np.float32(value))
