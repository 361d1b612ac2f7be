"""Protobuf spelling of the part of `common.requests` that reaches a worker."""

from stepwire.v1 import step_pb2 as pb

from common.requests import SamplingParams


def encode_sampling_params(params: SamplingParams) -> pb.SamplingParams:
    """Spell sampling parameters; the three floats are rounded to float32."""
    return pb.SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        seed=params.seed,
        num_logprobs=params.num_logprobs,
    )


def decode_sampling_params(params: pb.SamplingParams) -> SamplingParams:
    """Read sampling parameters; whether the values make sense is the runner's to say."""
    return SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        seed=params.seed,
        num_logprobs=params.num_logprobs if params.HasField("num_logprobs") else None,
    )
