"""The draft model: a small model of the same vocabulary says how a sequence goes on.

Its keys and values lie in the target's blocks, in tensors of its own: a block that is shared, kept or
given away is so for both, and where the target need not compute a prefix, nor need this. It draws with
the request's parameters and the noise of the target's own draw, so the likelier a token is to both
models, the likelier both draw it.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.step import Int32s, Int64s, Ragged
from common.worker_api import KVCacheSpec
from worker_service.attention.backend import Attend, AttentionBackend
from worker_service.attention.kv_cache import KVCache
from worker_service.batch.input_batch import InputBatch
from worker_service.batch.request_states import RequestStates
from worker_service.drafting.draft_progress import DraftProgress
from worker_service.drafting.draft_rows import DraftRows, TokenSpans
from worker_service.drafting.drafter import SampledRows
from worker_service.drafting.drafter_memory import DrafterMemory
from worker_service.models.decoder import DecoderModel
from worker_service.sampling.sampler import sample
from worker_service.sampling.sampling_states import NO_LOGPROBS, SamplingStates

# S rows that sampled, W of them that want drafts, R rows of a forward pass, D model size


class DraftModel:
    """Proposes what the small model draws, one forward pass a draft.

    It computes along what the target computes of prompts. Of a row that decodes, propose computes
    what is known and new, and nothing while the row wants no drafts; a row that is far behind catches
    up over several steps, at most most_tokens in each, and has no drafts until then.
    """

    def __init__(
        self,
        model: DecoderModel,
        *,
        parameter_bytes: int,
        kv_cache_spec: KVCacheSpec,
        backend: AttentionBackend,
        states: RequestStates,
        sampling: SamplingStates,
        device: torch.device,
        dtype: torch.dtype,
        most_drafts: int,
        most_tokens: int,
        most_rows: int,
    ) -> None:
        self._spare_blocks = -(-most_drafts // kv_cache_spec.block_size)
        self.memory = DrafterMemory(
            parameter_bytes=parameter_bytes,
            kv_cache_groups=kv_cache_spec.groups,
            num_spare_blocks=most_rows * self._spare_blocks,
        )
        self._model = model
        self._kv_cache_spec = kv_cache_spec
        self._backend = backend
        self._states = states
        self._sampling = sampling
        self._device = device
        self._dtype = dtype
        self._most_tokens = most_tokens
        self.progress = DraftProgress(states, most_drafts=most_drafts)
        self._rows: DraftRows | None = None
        self._kv_cache: KVCache | None = None

    def initialize_kv_cache(self, num_blocks: int) -> int:
        """Allocate as many blocks as the target has, and the spare ones; return the bytes."""
        self._kv_cache = KVCache.allocate(
            self._kv_cache_spec,
            num_blocks=num_blocks + self.memory.num_spare_blocks,
            device=self._device,
            dtype=self._dtype,
        )
        self._rows = DraftRows(
            self._states, first_spare_block=num_blocks, spare_blocks=self._spare_blocks
        )
        self.clear()
        return self._kv_cache.num_bytes

    def begin(self, slot: int, *, num_computed: int) -> None:
        """Count the tokens a request is readmitted with as computed: their blocks hold both models'."""
        self.progress.begin(slot, num_computed=num_computed)

    def follow(self, batch: InputBatch, hidden_TD: Tensor) -> None:
        """Compute prompts along, but for rows that propose will compute in the same step."""
        del hidden_TD
        rows = batch.rows
        num_new = rows.num_scheduled - rows.num_drafts
        proposes = np.zeros(batch.num_rows, dtype=np.bool_)
        proposes[batch.sampling_rows] = True
        is_decode = proposes & (num_new == 1)
        proposes &= rows.num_wanted > 0
        chosen = np.flatnonzero(~proposes & ~is_decode)
        if len(chosen):
            ends = (rows.num_computed + num_new)[chosen].astype(np.int64)
            self._catch_up(rows.slots[chosen], np.minimum(ends, self._longest))

    def propose(self, rows: SampledRows) -> Ragged:
        """What the small model draws after each row's known tokens."""
        num_rows = len(rows.slots)
        num_wanted = np.minimum(rows.num_wanted, self._longest + 1 - rows.num_known)
        wanting = np.flatnonzero(num_wanted > 0)
        if not len(wanting):
            return Ragged.empty(num_rows)
        slots_W, known_W = rows.slots[wanting], rows.num_known[wanting]
        is_level_W, hidden_RD = self._catch_up(slots_W, known_W)
        wanting, slots_W, known_W = wanting[is_level_W], slots_W[is_level_W], known_W[is_level_W]
        num_drafts = np.zeros(num_rows, dtype=np.int64)
        num_drafts[wanting] = self._draw(slots_W, known_W, num_wanted[wanting], hidden_RD)
        if num_drafts.any():
            self.progress.note_guesses(slots_W, known_W, num_drafts[wanting])
        tokens = self._states.tokens.values
        return Ragged.from_rows(
            [
                tokens[slot, known : known + count]
                for slot, known, count in zip(
                    rows.slots.tolist(), rows.num_known.tolist(), num_drafts.tolist(), strict=True
                )
            ]
        )

    def clear(self) -> None:
        """Forget how far every slot is computed."""
        self.progress.clear()

    def _catch_up(self, slots: Int64s, ends: Int64s) -> tuple[NDArray[np.bool_], Tensor]:
        """Compute tokens up to ends, as far as a step's tokens go.

        Returns which rows have come there, bool, and the last hidden states of those.
        """
        starts = self.progress.starts(slots, ends)
        num_missing = np.maximum(ends - starts, 0)
        before = np.cumsum(num_missing) - num_missing
        counts = np.clip(self._most_tokens - before, 0, num_missing)
        self.progress.note_computed(slots, starts + counts)
        has_tokens = counts > 0
        is_level = has_tokens & (counts == num_missing)
        if not has_tokens.any():
            return is_level, torch.empty(0)
        spans = TokenSpans(
            slots=slots[has_tokens], starts=starts[has_tokens], ends=(starts + counts)[has_tokens]
        )
        hidden_RD = self._forward(spans, np.arange(len(spans.slots)))
        return is_level, hidden_RD[torch.from_numpy(is_level[has_tokens]).to(hidden_RD.device)]

    def _draw(
        self, slots_W: Int64s, known_W: Int64s, num_wanted_W: Int64s, hidden_RD: Tensor
    ) -> Int64s:
        """Draw drafts into the token store, behind the known tokens; how many each row has."""
        num_drafts_W = np.zeros(len(slots_W), dtype=np.int64)
        # A row is drawn further until it has what it wants, or its logits are no finite numbers.
        active = np.arange(len(slots_W))
        tokens = self._states.tokens.values
        for index in range(int(num_wanted_W.max(initial=0))):
            positions = known_W[active] + index
            is_drawn, drawn = self._draw_one(slots_W[active], positions, hidden_RD)
            active, positions = active[is_drawn], positions[is_drawn]
            tokens[slots_W[active], positions] = drawn
            num_drafts_W[active] += 1
            goes_on = num_wanted_W[active] > index + 1
            active, positions = active[goes_on], positions[goes_on]
            if not len(active):
                break
            spans = TokenSpans(slots=slots_W[active], starts=positions, ends=positions + 1)
            hidden_RD = self._forward(spans, active)
        return num_drafts_W

    def _draw_one(
        self, slots: Int64s, positions: Int64s, hidden_RD: Tensor
    ) -> tuple[NDArray[np.bool_], Int32s]:
        """Which rows have a token, bool, and those tokens."""
        rows = self._sampling.rows(slots, positions=positions)
        # The records are this call's own; nobody reads the log-probabilities of a draft.
        rows.records["num_logprobs"] = NO_LOGPROBS
        sampled = sample(self._model.compute_logits(hidden_RD), rows)
        return sampled.is_sampled, sampled.token_ids

    def _forward(self, spans: TokenSpans, spare_rows: Int64s) -> Tensor:
        """Run the model on some tokens of each row; last hidden states of each row's last token."""
        assert self._rows is not None, "initialize_kv_cache comes first"
        assert self._kv_cache is not None, "initialize_kv_cache comes first"
        token_ids, positions, metadata = self._rows.gather(
            spans, spare_rows=spare_rows, device=self._device
        )
        attend = Attend(self._backend, self._kv_cache, metadata)
        hidden_TD = self._model(self._model.embed(token_ids), positions, attend)
        if len(spans.slots) == len(token_ids):
            return hidden_TD
        return hidden_TD[metadata.query_offsets[1:].to(torch.int64) - 1]

    @property
    def _longest(self) -> int:
        """Tokens of the longest sequence the small model was made for."""
        return self._model.spec.max_position_embeddings
