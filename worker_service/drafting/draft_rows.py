"""Some tokens of some sequences, as a draft model's forward pass reads them.

Drafts reach past a sequence's blocks, as the step that brings more of them comes later. There the
rows of a pass have spare blocks, whose contents count until the pass after the last draft.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from common.step import Int32s, Int64s
from worker_service.attention.metadata import AttentionMetadata
from worker_service.batch.request_states import RequestStates

# T tokens of the pass, R rows of the pass, B most blocks of a row


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenSpans:
    """Tokens [start, end) of R slots' sequences, at least one each; int64 [R]."""

    slots: Int64s
    starts: Int64s
    ends: Int64s


class DraftRows:
    """Gathers from the request states; spare blocks follow the target's, so many for each row."""

    def __init__(self, states: RequestStates, *, first_spare_block: int, spare_blocks: int) -> None:
        self._states = states
        self._first_spare_block = first_spare_block
        self._spare_blocks = spare_blocks

    def gather(
        self, spans: TokenSpans, *, spare_rows: Int64s, device: torch.device
    ) -> tuple[Tensor, Tensor, AttentionMetadata]:
        """Token ids int64 [T], positions int64 [T], and where keys and values lie.

        spare_rows int64 [R]: whose spare blocks each row has, the same in all passes of a proposal.
        """
        states = self._states
        query_lens, block_size = spans.ends - spans.starts, states.block_size
        offsets = np.zeros(len(query_lens) + 1, dtype=np.int32)
        np.cumsum(query_lens, out=offsets[1:])
        row_of_token = np.repeat(np.arange(len(query_lens)), query_lens)
        positions = np.arange(offsets[-1]) + (spans.starts - offsets[:-1])[row_of_token]
        token_ids = states.tokens.values[spans.slots[row_of_token], positions].astype(np.int64)
        table_RB = self._block_table(spans, spare_rows)
        block, offset = np.divmod(positions, block_size)
        slot_mapping = table_RB[row_of_token, block].astype(np.int64) * block_size + offset
        metadata = AttentionMetadata(
            query_offsets=torch.from_numpy(offsets).to(device),
            seq_lens=torch.from_numpy(spans.ends.astype(np.int32)).to(device),
            block_table=torch.from_numpy(table_RB).to(device),
            slot_mapping=torch.from_numpy(slot_mapping).to(device),
            query_lens_host=tuple(query_lens.tolist()),
            seq_lens_host=tuple(spans.ends.tolist()),
            max_query_len=int(query_lens.max()),
            max_seq_len=int(spans.ends.max()),
            block_size=block_size,
        )
        return (
            torch.from_numpy(token_ids).to(device),
            torch.from_numpy(positions).to(device),
            metadata,
        )

    def _block_table(self, spans: TokenSpans, spare_rows: Int64s) -> Int32s:
        """Block ids int32 [R, B]: the row's own, and spare ones where it has no more."""
        blocks = self._states.blocks
        width = -(-int(spans.ends.max()) // self._states.block_size)
        num_own_R1 = blocks.lengths[spans.slots].astype(np.int64)[:, None]
        columns_B = np.arange(width)
        # Columns past a row's end are never read.
        nth_spare_RB = np.clip(columns_B - num_own_R1, 0, self._spare_blocks - 1)
        first_R1 = self._first_spare_block + spare_rows[:, None] * self._spare_blocks
        own_RB = blocks.values[spans.slots, :width]
        table_RB = np.where(columns_B < num_own_R1, own_RB, first_R1 + nth_spare_RB)
        return np.ascontiguousarray(table_RB.astype(np.int32))
