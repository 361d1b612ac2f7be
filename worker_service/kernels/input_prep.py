"""Token ids, positions and cache slots of a step, gathered on the device.

    position[t] = num_computed[row] + (t - query_offsets[row])
    token_id[t] = tokens[slot_of(row), position]
    cache_slot[t] = blocks[slot_of(row), position // block_size] * block_size + position % block_size

The tokens of a graph's padding have the position 0, the token 0 and the cache slot -1, so that they
write nothing.

Legend: R rows of the step, T tokens, T' padded tokens, Q request slots, W tokens of a slot, B blocks.
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false
# Triton has no types of its own: a kernel is another language in the clothes of a function.

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from worker_service.kernels.launches import count_launch

_AT_ONCE = 128


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenInputs:
    """int64 [T'] each: what the embedding, the rotation and the cache read of a step's tokens."""

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor

    @classmethod
    def empty(cls, num_tokens: int, device: torch.device) -> "TokenInputs":
        """Room for so many."""

        def column() -> Tensor:
            return torch.empty(num_tokens, dtype=torch.int64, device=device)

        return cls(token_ids=column(), positions=column(), slot_mapping=column())


def gather_inputs(
    slots_R: Tensor,
    num_computed_R: Tensor,
    query_offsets: Tensor,
    *,
    tokens_QW: Tensor,
    blocks_QB: Tensor,
    block_size: int,
    max_query_len: int,
    out: TokenInputs,
) -> None:
    """Fill `out`; slots int64 [R], num_computed int32 [R], query_offsets int32 [R + 1] on the device."""
    num_rows = len(slots_R)
    count_launch("input_prep")
    # One more program row pads what lies behind the last row.
    num_padded = len(out.positions)
    longest = max(max_query_len, num_padded) if num_padded else max_query_len
    gather_kernel[(num_rows + 1, triton.cdiv(longest, _AT_ONCE))](
        slots_R,
        num_computed_R,
        query_offsets,
        tokens_QW,
        blocks_QB,
        out.token_ids,
        out.positions,
        out.slot_mapping,
        num_rows,
        num_padded,
        tokens_QW.stride(0),
        blocks_QB.stride(0),
        BLOCK_SIZE=block_size,
        AT_ONCE=_AT_ONCE,
        num_warps=1,
    )


def gather_inputs_reference(
    slots_R: Tensor,
    num_computed_R: Tensor,
    query_offsets: Tensor,
    *,
    tokens_QW: Tensor,
    blocks_QB: Tensor,
    block_size: int,
    out: TokenInputs,
) -> None:
    """The formula in torch."""
    query_lens_R = query_offsets.diff().to(torch.int64)
    rows_T = torch.repeat_interleave(
        torch.arange(len(slots_R), device=slots_R.device), query_lens_R
    )
    num_tokens = len(rows_T)
    positions_T = (
        torch.arange(num_tokens, device=rows_T.device)
        - query_offsets[rows_T]
        + num_computed_R[rows_T]
    )
    slots_T = slots_R[rows_T]
    out.token_ids.zero_()[:num_tokens] = tokens_QW[slots_T, positions_T].to(torch.int64)
    out.positions.zero_()[:num_tokens] = positions_T
    blocks_T = blocks_QB[slots_T, positions_T // block_size].to(torch.int64)
    out.slot_mapping.fill_(-1)[:num_tokens] = blocks_T * block_size + positions_T % block_size


@triton.jit
def gather_kernel(
    slots_ptr,  # int64 [R]
    num_computed_ptr,  # int32 [R]
    offsets_ptr,  # int32 [R + 1]
    tokens_ptr,  # int32 [Q, W], W contiguous
    blocks_ptr,  # int32 [Q, B], B contiguous
    token_ids_ptr,  # int64 [T']
    positions_ptr,  # int64 [T']
    slot_mapping_ptr,  # int64 [T']
    num_rows,
    num_padded,
    tokens_stride_q,
    blocks_stride_q,
    BLOCK_SIZE: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Some tokens of one row; the last row is the padding."""
    row = tl.program_id(0)
    index = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    start = tl.load(offsets_ptr + row)
    token = start + index
    if row == num_rows:
        is_token = token < num_padded
        nothing = tl.zeros([AT_ONCE], dtype=tl.int64)
        tl.store(token_ids_ptr + token, nothing, mask=is_token)
        tl.store(positions_ptr + token, nothing, mask=is_token)
        tl.store(slot_mapping_ptr + token, nothing - 1, mask=is_token)
        return
    is_token = token < tl.load(offsets_ptr + row + 1)
    slot = tl.load(slots_ptr + row)
    position = (tl.load(num_computed_ptr + row) + index).to(tl.int64)
    token_id = tl.load(tokens_ptr + slot * tokens_stride_q + position, mask=is_token, other=0)
    block_at = blocks_ptr + slot * blocks_stride_q + position // BLOCK_SIZE
    block = tl.load(block_at, mask=is_token, other=0).to(tl.int64)
    cache_slot = block * BLOCK_SIZE + position % BLOCK_SIZE
    tl.store(token_ids_ptr + token, token_id.to(tl.int64), mask=is_token)
    tl.store(positions_ptr + token, position, mask=is_token)
    tl.store(slot_mapping_ptr + token, cache_slot, mask=is_token)
