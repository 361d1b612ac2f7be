"""The stage build_attention_metadata: what the attention backend reads of an InputBatch."""

from worker_service.attention.metadata import AttentionMetadata
from worker_service.batch.input_batch import InputBatch


def build_attention_metadata(batch: InputBatch, *, block_size: int) -> AttentionMetadata:
    """Share the batch's device arrays and repeat its lengths on the host."""
    query_lens = tuple(batch.query_lens.tolist())
    seq_lens = tuple(batch.seq_lens_np.tolist())
    return AttentionMetadata(
        query_offsets=batch.query_offsets,
        seq_lens=batch.seq_lens,
        block_table=batch.block_table,
        slot_mapping=batch.slot_mapping,
        query_lens_host=query_lens,
        seq_lens_host=seq_lens,
        max_query_len=max(query_lens),
        max_seq_len=max(seq_lens),
        block_size=block_size,
    )
