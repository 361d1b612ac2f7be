"""The drafter: guesses the tokens that follow what was sampled, for the next step to check.

A guess may be wrong, or missing: the target's own token decides at every position, so a drafter moves
speed and nothing else. Runs on the last stage, on the device thread.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from common.step import Int32s, Int64s, Ragged
from worker_service.batch.input_batch import InputBatch
from worker_service.drafting.drafter_memory import DrafterMemory

# S rows that sampled, E tokens they emitted in all, T tokens of the step, D model size


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledRows:
    """The S rows of a step that sampled, after their tokens were accepted.

    slots int64 [S]; num_known int64 [S]: tokens of each, those just emitted included, which stand in
    the token store of the request states; num_emitted int32 [S], at least 1; num_wanted int32 [S]:
    most drafts of each, 0 for none. hidden_ED: the target's last hidden states at the positions the
    emitted tokens were drawn from, row after row.
    """

    slots: Int64s
    num_known: Int64s
    num_emitted: Int32s
    num_wanted: Int32s
    hidden_ED: Tensor


class Drafter(Protocol):
    """What proposes drafts. Slots are those of the request states it was made with.

    memory: what it holds beside the target.
    """

    memory: DrafterMemory

    def initialize_kv_cache(self, num_blocks: int) -> int:
        """Allocate keys and values of its own for the target's blocks; return the bytes."""
        ...

    def begin(self, slot: int, *, num_computed: int) -> None:
        """Let a slot start anew with another request, of which so many tokens are computed."""
        ...

    def follow(self, batch: InputBatch, hidden_TD: Tensor) -> None:
        """Hear of a step's forward pass, also of prompts that do not sample yet."""
        ...

    def propose(self, rows: SampledRows) -> Ragged:
        """Drafts of each row, int32, at most num_wanted; they follow its known tokens."""
        ...

    def clear(self) -> None:
        """Forget every request."""
        ...


class NoDrafter:
    """Proposes nothing."""

    memory = DrafterMemory()

    def initialize_kv_cache(self, num_blocks: int) -> int:
        """Do nothing: there are no keys and values."""
        return 0

    def begin(self, slot: int, *, num_computed: int) -> None:
        """Do nothing: nothing is kept of a slot."""

    def follow(self, batch: InputBatch, hidden_TD: Tensor) -> None:
        """Do nothing: nothing is computed along."""

    def propose(self, rows: SampledRows) -> Ragged:
        """No draft for any row."""
        return Ragged.empty(len(rows.slots))

    def clear(self) -> None:
        """Do nothing: there is nothing to forget."""
