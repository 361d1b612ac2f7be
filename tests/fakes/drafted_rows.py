"""Plays the runner of a last stage for a drafter: steps without a target model, whose tokens the test says.

Rows get blocks as a scheduler gives them: enough for what the step computes, never for what it will
propose.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from common.requests import SamplingParams
from common.step import NewRequest, Ragged
from worker_service.batch.builder import prepare_inputs
from worker_service.batch.input_batch import ScheduledRows
from worker_service.batch.request_states import RequestStates
from worker_service.drafting.drafter import Drafter, SampledRows
from worker_service.sampling.sampling_states import SamplingStates

GREEDY = SamplingParams(temperature=0.0)


class DraftedRows:
    """Requests by handle; `states` and `sampling` are what the drafter is to be made with."""

    def __init__(
        self, *, num_slots: int = 4, block_size: int = 4, num_blocks: int = 64, longest: int = 128
    ) -> None:
        self.states = RequestStates(
            num_slots=num_slots, max_model_len=longest, block_size=block_size
        )
        self.sampling = SamplingStates(num_slots=num_slots)
        self._block_size = block_size
        self._free_blocks = list(range(1, num_blocks))
        self._drafts: dict[int, list[int]] = {}

    def add(
        self,
        drafter: Drafter,
        handle: int,
        prompt: Sequence[int],
        *,
        sampling: SamplingParams = GREEDY,
        shared_blocks: Sequence[int] = (),
    ) -> None:
        """Admit a request, of which the shared blocks are computed."""
        num_computed = len(shared_blocks) * self._block_size
        request = NewRequest(
            handle=handle,
            token_ids=np.array(prompt, dtype=np.int32),
            num_prompt_tokens=len(prompt),
            sampling=sampling,
            block_ids=(np.array(shared_blocks, dtype=np.int32),),
            num_computed_tokens=num_computed,
        )
        slot = self.states.add(request)
        self.sampling.replace(slot, sampling)
        drafter.begin(slot, num_computed=num_computed)
        self._drafts[handle] = []

    def remove(self, handle: int) -> None:
        """Let a request go; its blocks may be another's at once."""
        self._free_blocks.extend(self.blocks(handle))
        self.states.remove(handle)

    def blocks(self, handle: int) -> list[int]:
        """The block table of a request."""
        return self.states.blocks.row(self.states.slot(handle)).tolist()

    def tokens(self, handle: int) -> list[int]:
        """The known tokens of a request."""
        return self.states.tokens.row(self.states.slot(handle)).tolist()

    def prefill(self, drafter: Drafter, handle: int, num_tokens: int) -> None:
        """Compute a chunk of a prompt that does not end it."""
        self._compute(drafter, {handle: num_tokens}, num_wanted={handle: 0})

    def step(
        self,
        drafter: Drafter,
        emitted: Mapping[int, Sequence[int]],
        *,
        num_wanted: int | Mapping[int, int],
        hidden_ED: Tensor | None = None,
    ) -> dict[int, list[int]]:
        """Compute all that is known and drafted of some requests, which then emit; their new drafts."""
        states = self.states
        handles = list(emitted)
        wanted = (
            num_wanted if isinstance(num_wanted, Mapping) else dict.fromkeys(handles, num_wanted)
        )
        missing = {
            handle: len(self.tokens(handle)) - int(states.num_computed[states.slot(handle)])
            for handle in handles
        }
        self._compute(drafter, missing, num_wanted=wanted)
        slots = states.slots(np.array(handles, dtype=np.uint64))
        tokens = Ragged.from_rows([list(emitted[handle]) for handle in handles])
        states.tokens.write_behind(slots, tokens)
        before = states.tokens.values.copy()
        num_known = states.tokens.lengths[slots] + tokens.lengths
        drafts = drafter.propose(
            SampledRows(
                slots=slots,
                num_known=num_known,
                num_emitted=tokens.lengths.astype(np.int32),
                num_wanted=np.array([wanted[handle] for handle in handles], dtype=np.int32),
                hidden_ED=torch.zeros(len(tokens.values), 1) if hidden_ED is None else hidden_ED,
            )
        )
        for slot, known in zip(slots.tolist(), num_known.tolist(), strict=True):
            assert (states.tokens.values[slot, :known] == before[slot, :known]).all()
        states.extend(slots, token_ids=tokens, block_ids=(Ragged.empty(len(slots)),))
        rows = [drafts.row(index).tolist() for index in range(len(handles))]
        self._drafts |= dict(zip(handles, rows, strict=True))
        return dict(zip(handles, rows, strict=True))

    def _compute(
        self, drafter: Drafter, num_known: Mapping[int, int], *, num_wanted: Mapping[int, int]
    ) -> None:
        """One forward pass over so many known tokens of each and, at its end, its drafts."""
        states = self.states
        handles = np.array(list(num_known), dtype=np.uint64)
        slots = states.slots(handles)
        drafts = Ragged.from_rows([self._drafts[handle] for handle in num_known])
        for handle, count in num_known.items():
            self._reserve(handle, count + len(self._drafts[handle]))
        states.put_drafts(slots, drafts)
        counts = np.array(list(num_known.values()), dtype=np.int32)
        num_drafts = drafts.lengths.astype(np.int32)
        rows = ScheduledRows(
            handles=handles,
            slots=slots,
            num_computed=states.num_computed[slots],
            num_scheduled=counts + num_drafts,
            num_drafts=num_drafts,
            num_wanted=np.array([num_wanted[handle] for handle in num_known], dtype=np.int32),
        )
        states.advance(slots, counts)
        batch = prepare_inputs(rows, states=states, device=torch.device("cpu"))
        drafter.follow(batch, torch.zeros(batch.num_tokens, 1))

    def _reserve(self, handle: int, num_tokens: int) -> None:
        states, slot = self.states, self.states.slot(handle)
        num_blocks = -(-(int(states.num_computed[slot]) + num_tokens) // self._block_size)
        new = [self._free_blocks.pop() for _ in range(num_blocks - len(self.blocks(handle)))]
        states.extend(
            np.array([slot]), token_ids=Ragged.empty(1), block_ids=(Ragged.from_rows([new]),)
        )
