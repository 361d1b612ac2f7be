"""From what a client asked to what the scheduler takes: every choice left to us is made here."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from common.requests import Request, SamplingParams, StopParams
from coordinator.engine.generation import GenerationInput, ServedModel
from coordinator.engine.request_checks import check_room, field_of

MIN_SAMPLING_TEMPERATURE = 0.01
MIN_TOP_P = float(np.finfo(np.float32).tiny)


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
) -> tuple[Request, ...]:
    """Make what the scheduler takes, one for each output, in the order of their indices.

    token_ids are the tokenized prompts. Raises InvalidRequest when one leaves no room for output.
    """
    for prompt, prompt_token_ids in zip(asked.prompts, token_ids, strict=True):
        check_room(field_of(prompt), len(prompt_token_ids), model=model)
    names = iter(sequence_ids(asked))
    return tuple(
        _build(next(names), prompt_token_ids, asked=asked, model=model, seed=seed)
        for prompt_token_ids in token_ids
        for seed in _seeds(asked, draw_seed)
    )


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
) -> Request:
    room = model.max_model_len - len(prompt_token_ids)
    return Request(
        request_id=name,
        prompt_token_ids=prompt_token_ids,
        sampling=SamplingParams(
            temperature=_temperature(asked.temperature),
            top_k=min(max(asked.top_k or 0, 0), model.vocab_size),
            top_p=_top_p(asked.top_p),
            min_p=_float32(asked.min_p or 0.0),
            seed=seed,
            num_logprobs=asked.logprobs,
        ),
        stopping=StopParams(
            max_tokens=min(asked.max_tokens or room, room),
            stop_token_ids=frozenset(asked.stop_token_ids),
            ignore_eos=asked.ignore_eos,
            stop=asked.stop,
        ),
        priority=asked.priority or 0,
        trace=asked.trace,
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
