"""What this rank knows of every live request, in slot-indexed arrays that live across steps.

A request keeps its slot until it is finished or preempted; nothing is moved or condensed. More
requests may be live than one step has rows (steps take turns over cohorts), so slots grow on
demand. Knows nothing of how tokens are sampled.
"""

import heapq

import numpy as np

from common.step import Int32s, Int64s, NewRequest, Ragged, Uint64s
from worker_service.batch.slot_lists import SlotLists


class RequestStates:
    """Tokens, block tables and computed count of each live request.

    tables: the block tables, one list of blocks per request in each; the model says how many there are.
    num_prompt int32 [slots]: how many of the tokens are the prompt. num_computed int32 [slots]: known
    tokens whose keys and values stand in the cache, or will once the step being executed has run.
    num_drafts int32 [slots]: drafts that step computes behind them; some may turn out to be the
    sequence's tokens. num_room int32 [slots]: drafts that step was planned for, of which there may be
    fewer. num_planned int32 [slots]: tokens the scheduler counted as computed when it had planned that
    step, as if every draft in flight were right.
    """

    def __init__(self, *, num_slots: int, max_model_len: int, block_size: int) -> None:
        self._slot_by_handle: dict[int, int] = {}
        self._free_slots = list(range(num_slots))
        self.block_size = block_size
        self.tokens = SlotLists(num_slots=num_slots, width=max_model_len)
        self._most_blocks = -(-max_model_len // block_size)
        self.tables = (SlotLists(num_slots=num_slots, width=self._most_blocks),)
        self.num_prompt: Int32s = np.zeros(num_slots, dtype=np.int32)
        self.num_computed: Int32s = np.zeros(num_slots, dtype=np.int32)
        self.num_drafts: Int32s = np.zeros(num_slots, dtype=np.int32)
        self.num_room: Int32s = np.zeros(num_slots, dtype=np.int32)
        self.num_planned: Int32s = np.zeros(num_slots, dtype=np.int32)

    @property
    def blocks(self) -> SlotLists:
        """The first block table, which is the only one unless windows differ among layers."""
        return self.tables[0]

    def use_tables(self, count: int) -> None:
        """Have so many block tables from here on; no request is live."""
        assert not self._slot_by_handle, "live requests have the tables they came with"
        self.tables = tuple(
            SlotLists(num_slots=self.num_slots, width=self._most_blocks) for _ in range(count)
        )

    @property
    def handles(self) -> tuple[int, ...]:
        """Live requests in increasing order of handle."""
        return tuple(sorted(self._slot_by_handle))

    @property
    def num_slots(self) -> int:
        """Slots there are, taken or free."""
        return len(self.num_computed)

    def knows(self, handle: int) -> bool:
        """Whether the request is live."""
        return handle in self._slot_by_handle

    def slot(self, handle: int) -> int:
        """Slot of a live request."""
        return self._slot_by_handle[handle]

    def slots(self, handles: Uint64s) -> Int64s:
        """Slots of live requests, int64 [len(handles)]."""
        slot_by_handle = self._slot_by_handle
        return np.array([slot_by_handle[handle] for handle in handles.tolist()], dtype=np.int64)

    def add(self, request: NewRequest) -> int:
        """Take the lowest free slot for a request that is not live, and return it."""
        if not self._free_slots:
            self._grow()
        slot = heapq.heappop(self._free_slots)
        self._slot_by_handle[request.handle] = slot
        self.tokens.replace(slot, request.token_ids)
        for table, block_ids in zip(self.tables, request.block_ids, strict=True):
            table.replace(slot, block_ids)
        self.num_prompt[slot] = request.num_prompt_tokens
        self.num_computed[slot] = request.num_computed_tokens
        self.num_drafts[slot] = self.num_room[slot] = 0
        self.num_planned[slot] = request.num_computed_tokens
        return slot

    def remove(self, handle: int) -> None:
        """Forget a live request."""
        heapq.heappush(self._free_slots, self._slot_by_handle.pop(handle))

    def extend(self, slots: Int64s, *, token_ids: Ragged, block_ids: tuple[Ragged, ...]) -> None:
        """Append tokens, and blocks to each table, one row per slot.

        Of the tokens that follow a sample those but the last are drafts that were right: they are
        computed.
        """
        self.tokens.extend(slots, token_ids)
        for table, rows in zip(self.tables, block_ids, strict=True):
            table.extend(slots, rows)
        self.num_computed[slots] += self.num_accepted(slots, token_ids.lengths)

    def num_accepted(self, slots: Int64s, num_tokens: Int64s) -> Int32s:
        """Drafts of each slot's last step that were right when so many tokens are appended."""
        return np.clip(num_tokens - 1, 0, self.num_drafts[slots]).astype(np.int32)

    def put_drafts(self, slots: Int64s, drafts: Ragged) -> None:
        """Write drafts behind the known tokens, one row per slot, in place of those before them."""
        self.tokens.write_behind(slots, drafts)
        self.num_drafts[slots] = drafts.lengths

    def drafts(self, slots: Int64s) -> Ragged:
        """The drafts behind the known tokens, one row per slot."""
        values, lengths, counts = self.tokens.values, self.tokens.lengths, self.num_drafts
        return Ragged.from_rows(
            [values[slot, lengths[slot] : lengths[slot] + counts[slot]] for slot in slots.tolist()]
        )

    def advance(self, slots: Int64s, num_tokens: Int32s) -> None:
        """Count known tokens as computed."""
        self.num_computed[slots] += num_tokens

    def clear(self) -> None:
        """Forget every request; the slots stay."""
        self._slot_by_handle.clear()
        self._free_slots = list(range(self.num_slots))

    def _grow(self) -> None:
        old, new = self.num_slots, 2 * self.num_slots
        self.tokens.grow(new)
        for table in self.tables:
            table.grow(new)
        added = np.zeros(new - old, np.int32)
        self.num_prompt = np.concatenate([self.num_prompt, added])
        self.num_computed = np.concatenate([self.num_computed, added])
        self.num_drafts = np.concatenate([self.num_drafts, added])
        self.num_room = np.concatenate([self.num_room, added])
        self.num_planned = np.concatenate([self.num_planned, added])
        for slot in range(old, new):
            heapq.heappush(self._free_slots, slot)
