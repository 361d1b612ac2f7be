"""Protobuf spelling of `common.speculation`: who proposes draft tokens."""

from stepwire.v1 import worker_pb2 as pb

from common.errors import ConfigError, InvalidRequest
from common.speculation import NO_SPECULATION, SpeculationConfig


def encode_speculation(config: SpeculationConfig) -> pb.Speculation | None:
    """Spell who proposes; nobody is spelled by absence."""
    if config.speculative_method == NO_SPECULATION:
        return None
    return pb.Speculation(
        method=config.speculative_method,
        num_speculative_tokens=config.num_speculative_tokens,
        prompt_lookup_min=config.prompt_lookup_min,
        prompt_lookup_max=config.prompt_lookup_max,
        draft_model=config.draft_model,
    )


def decode_speculation(speculation: pb.Speculation | None) -> SpeculationConfig:
    """Read who proposes; raises InvalidRequest for what no configuration may be."""
    if speculation is None:
        return SpeculationConfig()
    try:
        return SpeculationConfig(
            speculative_method=speculation.method,
            num_speculative_tokens=speculation.num_speculative_tokens,
            prompt_lookup_min=speculation.prompt_lookup_min,
            prompt_lookup_max=speculation.prompt_lookup_max,
            draft_model=speculation.draft_model if speculation.HasField("draft_model") else None,
        )
    except ConfigError as error:
        raise InvalidRequest(f"speculation: {error}", param="speculation") from None
