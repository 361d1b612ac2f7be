"""Protobuf spelling of the part of `common.requests` that reaches a worker."""

import numpy as np
from stepwire.v1 import step_pb2 as pb

from common.codecs.columns import (
    FLOAT32,
    INT32,
    decode_column,
    decode_rows,
    encode_column,
    encode_rows,
)
from common.errors import InvalidStep
from common.requests import SamplingParams
from common.step import Int32s


def encode_sampling_params(params: SamplingParams) -> pb.SamplingParams:
    """Spell sampling parameters; floats are rounded to float32."""
    spelled = pb.SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        seed=params.seed,
        num_logprobs=params.num_logprobs,
        num_prompt_logprobs=params.num_prompt_logprobs,
    )
    if params.edits_logits:
        spelled.repetition_penalty = params.repetition_penalty
        spelled.frequency_penalty = params.frequency_penalty
        spelled.presence_penalty = params.presence_penalty
        spelled.min_tokens = params.min_tokens
        spelled.end_token_ids = _ids(params.end_token_ids).tobytes()
        spelled.biased_token_ids = _ids([token_id for token_id, _ in params.logit_bias]).tobytes()
        biases = np.array([bias for _, bias in params.logit_bias], dtype=FLOAT32)
        spelled.logit_biases = encode_column(biases, FLOAT32)
        spelled.allowed_token_ids = _ids(params.allowed_token_ids).tobytes()
        if params.bad_words:
            spelled.bad_words.CopyFrom(encode_rows(tuple(map(_ids, params.bad_words))))
        spelled.extra_args.update(params.extra_args)
    return spelled


def decode_sampling_params(params: pb.SamplingParams, *, field: str) -> SamplingParams:
    """Read sampling parameters; whether the values make sense is the runner's to say.

    Raises InvalidStep naming the field for a malformed column.
    """

    def ids(name: str) -> tuple[int, ...]:
        column = getattr(params, name)
        return tuple(decode_column(column, INT32, field=f"{field}.{name}").tolist())

    biased = ids("biased_token_ids")
    biases = decode_column(
        params.logit_biases, FLOAT32, field=f"{field}.logit_biases", length=len(biased)
    )
    bad_words: tuple[tuple[int, ...], ...] = ()
    if params.HasField("bad_words"):
        rows = decode_rows(params.bad_words, field=f"{field}.bad_words")
        bad_words = tuple(tuple(row.tolist()) for row in rows)
        if not all(bad_words):
            raise InvalidStep(f"{field}.bad_words: holds an empty sequence")
    return SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        seed=params.seed,
        num_logprobs=_optional(params, "num_logprobs"),
        num_prompt_logprobs=_optional(params, "num_prompt_logprobs"),
        repetition_penalty=(
            params.repetition_penalty if params.HasField("repetition_penalty") else 1.0
        ),
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        min_tokens=params.min_tokens,
        end_token_ids=ids("end_token_ids"),
        logit_bias=tuple(zip(biased, biases.tolist(), strict=True)),
        allowed_token_ids=ids("allowed_token_ids"),
        bad_words=bad_words,
        extra_args=tuple(sorted(params.extra_args.items())),
    )


def _optional(params: pb.SamplingParams, name: str) -> int | None:
    return getattr(params, name) if params.HasField(name) else None


def _ids(token_ids: "list[int] | tuple[int, ...]") -> Int32s:
    return np.array(token_ids, dtype=INT32)
