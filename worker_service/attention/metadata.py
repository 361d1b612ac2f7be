"""What an attention backend needs to know of a step; knows no model and no cache contents.

Legend: T tokens of the step, R requests (rows), B most blocks per request.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionMetadata:
    """Where each row's tokens stand in the step and where its context lies in the cache.

    Row i owns the tokens query_offsets[i]:query_offsets[i + 1] of the step, which are the last ones
    of its seq_lens[i] tokens in the cache; token t of the sequence lies in slot
    block_table[i, t // block_size] * block_size + t % block_size. Columns of block_table past a
    row's last block are never read. The host tuples repeat the lengths, so that planning a step
    never waits for the device.
    """

    query_offsets: Tensor
    """int32 [R + 1], first 0, last T."""
    seq_lens: Tensor
    """int32 [R]: tokens of the row in the cache, this step's included."""
    block_table: Tensor
    """int32 [R, B]."""
    slot_mapping: Tensor
    """int64 [T]: the slot that takes the token's keys and values; -1 stores nothing."""
    query_lens_host: tuple[int, ...]
    """Tokens of each row in this step."""
    seq_lens_host: tuple[int, ...]
    """seq_lens on the host."""
    max_query_len: int
    max_seq_len: int
    block_size: int
    """Token slots of a block."""
