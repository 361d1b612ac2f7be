"""The stage prepare_inputs: request states and the step's rows -> InputBatch.

Everything is gathered on the host in numpy and moved to the device once per array.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker_service.batch.input_batch import InputBatch, ScheduledRows
from worker_service.batch.request_states import RequestStates
from worker_service.batch.slot_lists import SlotLists

# T tokens of the step, R rows of the step, B most blocks of a row


def prepare_inputs(
    rows: ScheduledRows, *, states: RequestStates, device: torch.device
) -> InputBatch:
    """Gather token ids, positions and cache slots of the scheduled tokens, row after row."""
    query_lens = rows.num_scheduled
    seq_lens_np = rows.num_computed + query_lens
    offsets = np.zeros(len(query_lens) + 1, dtype=np.int32)
    np.cumsum(query_lens, out=offsets[1:])

    slot_of_token, positions = rows.slots, rows.num_computed.astype(np.int64)
    if offsets[-1] > len(query_lens):
        row_of_token = np.repeat(np.arange(len(query_lens)), query_lens)
        slot_of_token = rows.slots[row_of_token]
        positions -= offsets[:-1]
        positions = positions[row_of_token] + np.arange(offsets[-1])

    num_known = seq_lens_np - rows.num_drafts
    sampling_rows = np.flatnonzero(num_known == states.tokens.lengths[rows.slots])

    def to_device(array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(device)

    return InputBatch(
        rows=rows,
        token_ids=to_device(states.tokens.values[slot_of_token, positions].astype(np.int64)),
        positions=to_device(positions),
        query_offsets=to_device(offsets),
        seq_lens=to_device(seq_lens_np),
        block_tables=tuple(to_device(_block_table(rows, blocks)) for blocks in states.tables),
        slot_mappings=tuple(
            to_device(_slot_mapping(slot_of_token, positions, blocks, states.block_size))
            for blocks in states.tables
        ),
        logits_indices=to_device(
            _logits_indices(offsets[1:][sampling_rows], rows.num_drafts[sampling_rows])
        ),
        query_lens=query_lens,
        seq_lens_np=seq_lens_np,
        sampling_rows=sampling_rows,
    )


def _logits_indices(
    ends_S: NDArray[np.int32], num_drafts_S: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Indices int64 [N] of each row's last known token and its drafts; its tokens end at ends."""
    indices_S = ends_S.astype(np.int64) - 1
    if not num_drafts_S.any():
        return indices_S
    counts_S = num_drafts_S.astype(np.int64) + 1
    first_N = np.repeat(indices_S - num_drafts_S, counts_S)
    within_N = np.arange(len(first_N)) - np.repeat(np.cumsum(counts_S) - counts_S, counts_S)
    return first_N + within_N


def _block_table(rows: ScheduledRows, blocks: SlotLists) -> NDArray[np.int32]:
    """Block ids int32 [R, B]; past a row's own blocks stands the null block 0."""
    num_blocks_R = blocks.lengths[rows.slots]
    width = int(num_blocks_R.max(initial=0))
    table_RB = blocks.values[rows.slots, :width]
    table_RB[np.arange(width) >= num_blocks_R[:, None]] = 0
    return table_RB


def _slot_mapping(
    slot_of_token: NDArray[np.int64],
    positions: NDArray[np.int64],
    blocks: SlotLists,
    block_size: int,
) -> NDArray[np.int64]:
    """Cache slot int64 [T] of each token: block * block_size + offset in the block."""
    block_index, offset = np.divmod(positions, block_size)
    block_ids = blocks.values[slot_of_token, block_index].astype(np.int64)
    return block_ids * block_size + offset
