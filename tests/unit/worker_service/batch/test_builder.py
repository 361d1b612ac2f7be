"""From request states to the inputs of a step."""

import numpy as np
import torch

from common.requests import SamplingParams
from common.step import NewRequest
from worker_service.batch.builder import prepare_inputs
from worker_service.batch.input_batch import InputBatch, ScheduledRows
from worker_service.batch.request_states import RequestStates

CPU = torch.device("cpu")


def make_batch(rows: list[tuple[int, int, list[int], int]]) -> InputBatch:
    """Inputs of rows (known tokens, computed tokens, blocks, scheduled tokens), block size 4.

    Token t of row i is 100 * i + t.
    """
    states = RequestStates(num_slots=1, max_model_len=16, block_size=4)
    slots = [
        states.add(
            NewRequest(
                handle=50 + index,
                token_ids=np.arange(known, dtype=np.int32) + 100 * index,
                num_prompt_tokens=known,
                sampling=SamplingParams(),
                block_ids=(np.array(blocks, np.int32),),
                num_computed_tokens=computed,
            )
        )
        for index, (known, computed, blocks, _) in enumerate(rows)
    ]
    scheduled = ScheduledRows(
        handles=np.array([50 + index for index in range(len(rows))], np.uint64),
        slots=np.array(slots),
        num_computed=np.array([row[1] for row in rows], np.int32),
        num_scheduled=np.array([row[3] for row in rows], np.int32),
        num_drafts=np.zeros(len(rows), np.int32),
        num_wanted=np.zeros(len(rows), np.int32),
    )
    return prepare_inputs(scheduled, states=states, device=CPU)


def test_tokens_positions_and_slots_follow_the_block_table():
    """A chunk in the middle of a prompt and a decode, each in its own blocks."""
    batch = make_batch([(12, 3, [5, 2, 7], 6), (6, 5, [1, 9], 1)])
    assert batch.token_ids.tolist() == [3, 4, 5, 6, 7, 8, 105]
    assert batch.positions.tolist() == [3, 4, 5, 6, 7, 8, 5]
    assert batch.slot_mappings[0].tolist() == [23, 8, 9, 10, 11, 28, 37]
    assert batch.query_offsets.tolist() == [0, 6, 7]
    assert batch.seq_lens.tolist() == [9, 6]


def test_block_table_is_padded_with_the_null_block():
    """Rows with fewer blocks end in block 0, also where a former owner of the slot had more."""
    batch = make_batch([(2, 0, [4], 2), (9, 8, [5, 6, 7], 1)])
    assert batch.block_tables[0].tolist() == [[4, 0, 0], [5, 6, 7]]


def test_only_rows_that_compute_their_last_token_sample():
    """A partial prefill has no logits row; the others point at their last token."""
    batch = make_batch([(8, 0, [1, 2], 5), (8, 5, [3, 4], 3), (1, 0, [5], 1)])
    assert batch.sampling_rows.tolist() == [1, 2]
    assert batch.logits_indices.tolist() == [7, 8]


def test_index_arrays_have_the_types_the_backends_expect():
    """int64 for ids, positions, slots and logits indices; int32 for lengths and tables."""
    batch = make_batch([(2, 0, [4], 2)])
    int64s = (batch.token_ids, batch.positions, batch.slot_mappings[0], batch.logits_indices)
    int32s = (batch.query_offsets, batch.seq_lens, batch.block_tables[0])
    assert {tensor.dtype for tensor in int64s} == {torch.int64}
    assert {tensor.dtype for tensor in int32s} == {torch.int32}
