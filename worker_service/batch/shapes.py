"""The stage choose_shape: the shape in which a step runs."""

from dataclasses import dataclass

from worker_service.batch.input_batch import InputBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """Tokens and rows the forward pass computes on."""

    num_tokens: int
    num_rows: int


def choose_shape(batch: InputBatch) -> BatchShape:
    """The step's own shape: an eager forward pass needs no padding."""
    return BatchShape(num_tokens=batch.num_tokens, num_rows=batch.num_rows)
