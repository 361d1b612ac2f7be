"""The inputs of captured graphs: a step is copied into them, padded, before a graph replays it.

Legend: T padded tokens, R padded rows, B most blocks of a row, D model size.
"""

import torch
from torch import Tensor

from worker_service.attention.metadata import AttentionMetadata
from worker_service.batch.input_batch import InputBatch
from worker_service.batch.shapes import BatchDescriptor
from worker_service.runner.workspace import Workspace


class StepBuffers:
    """Hidden states, positions and, per block table, where keys and values stand."""

    def __init__(
        self,
        workspace: Workspace,
        *,
        hidden_size: int,
        dtype: torch.dtype,
        num_tables: int,
        block_size: int,
        max_model_len: int,
    ) -> None:
        self._workspace = workspace
        self._hidden_size = hidden_size
        self._dtype = dtype
        self._num_tables = num_tables
        self._block_size = block_size
        self._max_model_len = max_model_len

    def hidden(self, num_tokens: int) -> Tensor:
        """Hidden states [T, D]."""
        return self._workspace.get("hidden", (num_tokens, self._hidden_size), self._dtype)

    def positions(self, num_tokens: int) -> Tensor:
        """int64 [T]."""
        return self._workspace.get("positions", (num_tokens,), torch.int64)

    def fill_tokens(self, key: BatchDescriptor, batch: InputBatch, hidden_TD: Tensor) -> None:
        """Copy what every token brings; what pads has position 0."""
        count = batch.num_tokens
        self.hidden(key.num_tokens)[:count] = hidden_TD
        positions = self.positions(key.num_tokens)
        positions[:count] = batch.positions
        positions[count:] = 0

    def fill_rows(self, key: BatchDescriptor, batch: InputBatch) -> None:
        """Copy where the rows' contexts stand; what pads sees the null block and is stored nowhere."""
        num_rows, decode_len = _rows_of(key)
        seq_lens = self._seq_lens(num_rows)
        seq_lens[: batch.num_rows] = batch.seq_lens
        seq_lens[batch.num_rows :] = decode_len
        for table in range(self._num_tables):
            block_table = self._block_table(table, num_rows)
            given = batch.block_tables[table]
            block_table[: batch.num_rows, : given.shape[1]] = given
            block_table[batch.num_rows :] = 0
            slots = self._slot_mapping(table, key.num_tokens)
            slots[: batch.num_tokens] = batch.slot_mappings[table]
            slots[batch.num_tokens :] = -1

    def clear_rows(self, key: BatchDescriptor) -> None:
        """Make all rows padding, as the capture must store nothing."""
        num_rows, decode_len = _rows_of(key)
        self._seq_lens(num_rows).fill_(decode_len)
        for table in range(self._num_tables):
            self._block_table(table, num_rows).zero_()
            self._slot_mapping(table, key.num_tokens).fill_(-1)

    def metadata(self, key: BatchDescriptor) -> tuple[AttentionMetadata, ...]:
        """What attention reads of a step of this shape, for each block table: the buffers.

        Lengths on the host are the longest there may be: what is cut by them fits any step.
        """
        num_rows, decode_len = _rows_of(key)
        offsets = self._workspace.get(f"offsets of {num_rows}", (num_rows + 1,), torch.int32)
        torch.arange(0, (num_rows + 1) * decode_len, decode_len, out=offsets, dtype=torch.int32)
        return tuple(
            AttentionMetadata(
                query_offsets=offsets,
                seq_lens=self._seq_lens(num_rows),
                block_table=self._block_table(table, num_rows),
                slot_mapping=self._slot_mapping(table, key.num_tokens),
                query_lens_host=(decode_len,) * num_rows,
                seq_lens_host=(self._max_model_len,) * num_rows,
                max_query_len=decode_len,
                max_seq_len=self._max_model_len,
                block_size=self._block_size,
            )
            for table in range(self._num_tables)
        )

    def _seq_lens(self, num_rows: int) -> Tensor:
        return self._workspace.get("seq_lens", (num_rows,), torch.int32)

    def _block_table(self, table: int, num_rows: int) -> Tensor:
        most_blocks = -(-self._max_model_len // self._block_size)
        shape = (num_rows, most_blocks)
        return self._workspace.get(f"block table {table}", shape, torch.int32)

    def _slot_mapping(self, table: int, num_tokens: int) -> Tensor:
        return self._workspace.get(f"slot mapping {table}", (num_tokens,), torch.int64)


def _rows_of(key: BatchDescriptor) -> tuple[int, int]:
    """Rows of a uniform shape, and tokens of each."""
    assert key.num_rows is not None, "only a graph with attention has rows"
    assert key.max_query_len is not None, "only a graph with attention has rows"
    return key.num_rows, key.max_query_len
