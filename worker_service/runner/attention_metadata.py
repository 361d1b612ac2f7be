"""The stage build_attention_metadata: what the attention backend reads of an InputBatch."""

from worker_service.attention.metadata import AttentionMetadata
from worker_service.batch.input_batch import InputBatch


def build_attention_metadata(
    batch: InputBatch, *, block_size: int
) -> tuple[AttentionMetadata, ...]:
    """Share the batch's device arrays and repeat its lengths on the host; one for each block table."""
    query_lens = tuple(batch.query_lens.tolist())
    seq_lens = tuple(batch.seq_lens_np.tolist())
    return tuple(
        AttentionMetadata(
            query_offsets=batch.query_offsets,
            seq_lens=batch.seq_lens,
            block_table=block_table,
            slot_mapping=slot_mapping,
            query_lens_host=query_lens,
            seq_lens_host=seq_lens,
            max_query_len=max(query_lens),
            max_seq_len=max(seq_lens),
            block_size=block_size,
        )
        for block_table, slot_mapping in zip(batch.block_tables, batch.slot_mappings, strict=True)
    )
