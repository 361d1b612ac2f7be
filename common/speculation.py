"""The configuration slice of speculative decoding: who proposes draft tokens, and how many."""

from dataclasses import dataclass

from common.errors import ConfigError
from common.setting import setting

NO_SPECULATION = "none"
NGRAM = "ngram"
DRAFT_MODEL = "draft_model"
SPECULATIVE_METHODS = (NO_SPECULATION, NGRAM, DRAFT_MODEL)
"""Who proposes drafts: nobody, the sequence's own earlier tokens, or a small model."""

MOST_SPECULATIVE_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    """Draft tokens that a step computes and checks behind the known ones."""

    speculative_method: str = setting(
        NO_SPECULATION,
        "none, ngram (repeats what followed the same tokens before) or draft_model (a small model)",
    )
    num_speculative_tokens: int = setting(
        4, f"most draft tokens of a sequence in a step, up to {MOST_SPECULATIVE_TOKENS}"
    )
    prompt_lookup_min: int = setting(2, "shortest n-gram looked up (method ngram)")
    prompt_lookup_max: int = setting(4, "longest n-gram looked up (method ngram)")
    draft_model: str | None = setting(
        None, "name or folder of the small model, with the same vocabulary (method draft_model)"
    )

    def __post_init__(self) -> None:
        if self.speculative_method not in SPECULATIVE_METHODS:
            raise ConfigError(
                f"speculative_method must be one of {', '.join(SPECULATIVE_METHODS)}, "
                f"not {self.speculative_method!r}"
            )
        if not 1 <= self.num_speculative_tokens <= MOST_SPECULATIVE_TOKENS:
            raise ConfigError(
                f"num_speculative_tokens must be in [1, {MOST_SPECULATIVE_TOKENS}], "
                f"not {self.num_speculative_tokens}"
            )
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min must be in [1, prompt_lookup_max {self.prompt_lookup_max}], "
                f"not {self.prompt_lookup_min}"
            )
        if (self.draft_model is not None) != (self.speculative_method == DRAFT_MODEL):
            raise ConfigError("--draft-model and --speculative-method draft_model go together")

    @property
    def most_drafts(self) -> int:
        """Most draft tokens of a row, 0 without speculation."""
        return self.num_speculative_tokens if self.speculative_method != NO_SPECULATION else 0
