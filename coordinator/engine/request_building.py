"""From what a client asked to what the scheduler takes: every choice left to us is made here."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from common.requests import Request, SamplingParams, StopParams
from coordinator.engine.generation import GenerationInput, ServedModel
from coordinator.engine.limits import ALL_LOGPROBS
from coordinator.engine.request_checks import check_room, field_of

MIN_SAMPLING_TEMPERATURE = 0.01
MIN_TOP_P = float(np.finfo(np.float32).tiny)
MIN_REPETITION_PENALTY = 1e-6


def sequence_ids(asked: GenerationInput) -> tuple[str, ...]:
    """The names of the request's sequences in the scheduler; a single one has the request's own."""
    if asked.num_sequences == 1:
        return (asked.request_id,)
    return tuple(f"{asked.request_id}.{index}" for index in range(asked.num_sequences))


def build_requests(
    asked: GenerationInput,
    token_ids: Sequence[tuple[int, ...]],
    *,
    model: ServedModel,
    draw_seed: Callable[[], int],
    bad_words: tuple[tuple[int, ...], ...] = (),
) -> tuple[Request, ...]:
    """Make what the scheduler takes, one for each output, in the order of their indices.

    token_ids are the tokenized prompts, bad_words those of the request as tokens. Raises
    InvalidRequest when a prompt leaves no room for output.
    """
    for prompt, prompt_token_ids in zip(asked.prompts, token_ids, strict=True):
        check_room(field_of(prompt), len(prompt_token_ids), model=model)
    names = iter(sequence_ids(asked))
    requests: list[Request] = []
    for prompt_token_ids in token_ids:
        leader: str | None = None
        for seed in _seeds(asked, draw_seed):
            request = _build(
                next(names),
                prompt_token_ids,
                asked=asked,
                model=model,
                seed=seed,
                bad_words=bad_words,
                leader=leader,
            )
            requests.append(request)
            leader = leader or request.request_id
    return tuple(requests)


def _seeds(asked: GenerationInput, draw_seed: Callable[[], int]) -> Iterator[int]:
    """One per choice: drawn, or counted up from the given one, so that choices differ."""
    for choice in range(asked.num_choices):
        yield draw_seed() if asked.seed is None else (asked.seed + choice) % 2**64


def _build(
    name: str,
    prompt_token_ids: tuple[int, ...],
    *,
    asked: GenerationInput,
    model: ServedModel,
    seed: int,
    bad_words: tuple[tuple[int, ...], ...],
    leader: str | None,
) -> Request:
    room = model.max_model_len - len(prompt_token_ids)
    wants_tokens = asked.max_tokens is None or asked.max_tokens > 0
    return Request(
        request_id=name,
        prompt_token_ids=prompt_token_ids,
        sampling=SamplingParams(
            temperature=_temperature(asked.temperature),
            top_k=min(max(asked.top_k or 0, 0), model.vocab_size),
            top_p=_top_p(asked.top_p),
            min_p=_float32(asked.min_p or 0.0),
            seed=seed,
            num_logprobs=_num_logprobs(asked.logprobs, model) if wants_tokens else None,
            num_prompt_logprobs=_num_prompt_logprobs(asked, model),
            repetition_penalty=_repetition_penalty(asked.repetition_penalty),
            frequency_penalty=_float32(_or(asked.frequency_penalty, 0.0)),
            presence_penalty=_float32(_or(asked.presence_penalty, 0.0)),
            min_tokens=asked.min_tokens or 0,
            end_token_ids=_end_token_ids(asked, model) if asked.min_tokens else (),
            logit_bias=tuple((token_id, _float32(bias)) for token_id, bias in asked.logit_bias),
            allowed_token_ids=tuple(sorted(set(asked.allowed_token_ids or ()))),
            bad_words=bad_words,
            extra_args=tuple(sorted(asked.extra_args)),
        ),
        stopping=StopParams(
            # Where the prompt alone is wanted, a token is drawn and not delivered.
            max_tokens=min(_most_tokens(asked) or room, room),
            stop_token_ids=frozenset(asked.stop_token_ids),
            ignore_eos=asked.ignore_eos,
            stop=asked.stop,
        ),
        priority=asked.priority or 0,
        trace=asked.trace,
        leader_id=leader,
    )


def _most_tokens(asked: GenerationInput) -> int | None:
    return asked.max_tokens if asked.max_tokens is None else max(asked.max_tokens, 1)


def _num_logprobs(asked: int | None, model: ServedModel) -> int | None:
    return model.vocab_size if asked == ALL_LOGPROBS else asked


def _num_prompt_logprobs(asked: GenerationInput, model: ServedModel) -> int | None:
    """Those asked for, or with echo those of the output, as the prompt is part of it."""
    count = asked.prompt_logprobs
    if count is None and asked.echo:
        count = asked.logprobs
    return _num_logprobs(count, model)


def _end_token_ids(asked: GenerationInput, model: ServedModel) -> tuple[int, ...]:
    """What cannot be drawn before there are min_tokens tokens."""
    ends = frozenset(asked.stop_token_ids)
    if not asked.ignore_eos:
        ends |= model.eos_token_ids
    return tuple(sorted(ends))


def _or(asked: float | None, default: float) -> float:
    return default if asked is None else asked


def _temperature(asked: float | None) -> float:
    """The temperature to sample at; a small one is raised, lest scaled logits overflow."""
    if asked is None:
        return 1.0
    return _float32(max(asked, MIN_SAMPLING_TEMPERATURE)) if asked > 0 else 0.0


def _top_p(asked: float | None) -> float:
    """The nucleus mass, kept above 0 where rounding would make it 0."""
    return 1.0 if asked is None else max(_float32(asked), MIN_TOP_P)


def _repetition_penalty(asked: float | None) -> float:
    """The penalty; a small one is raised, lest it rounds to 0 or logits divided by it overflow."""
    return 1.0 if asked is None else _float32(max(asked, MIN_REPETITION_PENALTY))


def _float32(value: float) -> float:
    """The value the wire carries, so that every placement of the workers draws the same tokens."""
    return float(np.float32(value))
