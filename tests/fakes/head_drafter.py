"""A drafter of the kind that EAGLE is: a head on the target's last hidden states.

This one is built to agree with a target whose layers add nothing, so that a token's logits follow
from the token alone. It reads that token out of the hidden state, and so is wrong when it is given
those of another position or row.
"""

import torch

from common.step import Ragged
from worker_service.batch.input_batch import InputBatch
from worker_service.drafting.drafter import SampledRows
from worker_service.drafting.drafter_memory import DrafterMemory
from worker_service.models.decoder import DecoderModel


class HeadDrafter:
    """Proposes the greedy text that follows each row's last emitted token."""

    memory = DrafterMemory()

    def __init__(self, target: DecoderModel) -> None:
        self._target = target
        self.num_tokens_followed = 0

    def initialize_kv_cache(self, num_blocks: int) -> int:
        """Do nothing: this head attends to nothing."""
        return 0

    def begin(self, slot: int, *, num_computed: int) -> None:
        """Do nothing: nothing is kept of a slot."""

    def follow(self, batch: InputBatch, hidden_TD: torch.Tensor) -> None:
        """Count the tokens whose hidden states came by."""
        assert len(hidden_TD) == batch.num_tokens
        self.num_tokens_followed += len(hidden_TD)

    def propose(self, rows: SampledRows) -> Ragged:
        """What the head says after the hidden state of each row's last emitted token, again and again."""
        ends_S = torch.from_numpy(rows.num_emitted.cumsum() - 1)
        tokens_S = self._next(rows.hidden_ED[ends_S])
        drafts: list[list[int]] = [[] for _ in rows.slots]
        for index in range(int(rows.num_wanted.max(initial=0))):
            tokens_S = self._next(self._target.embed(tokens_S))
            for draft, token, wanted in zip(
                drafts, tokens_S.tolist(), rows.num_wanted.tolist(), strict=True
            ):
                if wanted > index:
                    draft.append(token)
        return Ragged.from_rows(drafts)

    def clear(self) -> None:
        """Do nothing: there is nothing to forget."""

    def _next(self, hidden_SD: torch.Tensor) -> torch.Tensor:
        return self._target.compute_logits(hidden_SD).argmax(dim=1)
