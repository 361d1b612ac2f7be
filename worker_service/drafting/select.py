"""The stage select_drafter: who proposes drafts on this rank."""

from collections.abc import Callable
from typing import Protocol

from common.errors import InvalidRequest
from common.speculation import DRAFT_MODEL, NGRAM, NO_SPECULATION, SpeculationConfig
from worker_service.batch.request_states import RequestStates
from worker_service.drafting.drafter import Drafter, NoDrafter
from worker_service.drafting.ngram import NgramDrafter


class DrafterSelect(Protocol):
    """Chooses a drafter as `select_drafter` does."""

    def __call__(
        self,
        config: SpeculationConfig,
        *,
        states: RequestStates,
        is_last: bool,
        load_draft_model: Callable[[], Drafter],
    ) -> Drafter:
        """The drafter of one rank."""
        ...


def select_drafter(
    config: SpeculationConfig,
    *,
    states: RequestStates,
    is_last: bool,
    load_draft_model: Callable[[], Drafter],
) -> Drafter:
    """The drafter of the configuration on the last stage, none on those before it.

    load_draft_model reads the small model, where that is the method. Raises InvalidRequest for a
    method this worker does not have.
    """
    if not is_last or config.speculative_method == NO_SPECULATION:
        return NoDrafter()
    drafters: dict[str, Callable[[], Drafter]] = {
        NGRAM: lambda: NgramDrafter(
            states,
            prompt_lookup_min=config.prompt_lookup_min,
            prompt_lookup_max=config.prompt_lookup_max,
        ),
        DRAFT_MODEL: load_draft_model,
    }
    if config.speculative_method not in drafters:
        raise InvalidRequest(
            f"this worker has no speculative method {config.speculative_method!r}",
            param="speculation",
        )
    return drafters[config.speculative_method]()
