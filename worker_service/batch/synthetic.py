"""Made-up steps for the profile run and the warm-up, to be fed through the ordinary path.

Every block table holds only the null block 0, so no one's cache is touched, and each series ends
with a step that finishes its requests, so no state stays behind.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from common.requests import SamplingParams
from common.step import CachedRequests, Int32s, NewRequest, Ragged, SchedulerOutput, StepId, Uint64s
from worker_service.batch.sampled_tokens import SampledTokens

# Every filter and the log-probabilities are on, as that needs the most memory and code.
_SAMPLING = SamplingParams(temperature=1.0, top_k=8, top_p=0.9, min_p=0.01, seed=1, num_logprobs=1)
_WARM_UP_ROWS = 8
_WARM_UP_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSizes:
    """The limits of a step: tokens, rows, tokens of a sequence, token slots of a block, drafts of a row.

    num_tables: block tables of the model.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    block_size: int
    most_drafts: int = 0
    num_tables: int = 1

    @property
    def num_drafts(self) -> int:
        """Drafts of a row behind a prompt of one token, as far as the other limits allow."""
        return max(
            0, min(self.most_drafts, self.max_num_batched_tokens - 1, self.max_model_len - 2)
        )


class ZeroInputs:
    """Stands in for other stages: one tensor of zeros, and no tokens, as made-up steps need none."""

    def __init__(
        self, name: str, shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._name = name
        self._zeros = torch.zeros(shape, dtype=dtype, device=device)

    def receive(self) -> dict[str, Tensor]:
        """The zeros by name, at once."""
        return {self._name: self._zeros}

    def receive_tokens(self, step: int) -> SampledTokens:
        """Nothing."""
        return SampledTokens.none()


def largest_step(sizes: StepSizes) -> Iterator[SchedulerOutput]:
    """As many tokens as a step may have over as many rows, all of which sample.

    Where rows may have drafts, then as many as a step may have, since each of them is sampled.
    """
    lengths = _row_lengths(
        num_tokens=sizes.max_num_batched_tokens,
        num_rows=sizes.max_num_seqs,
        longest=sizes.max_model_len,
    )
    yield _prefill(lengths, sizes=sizes)
    yield _finish(lengths, step=2)
    if sizes.num_drafts:
        num_rows = min(sizes.max_num_seqs, sizes.max_num_batched_tokens // (1 + sizes.num_drafts))
        lengths = [1] * num_rows
        yield _prefill(lengths, sizes=sizes, step=3)
        yield _decode(lengths, sizes=sizes, step=4)
        yield _finish(lengths, step=5)


def warm_up_steps(sizes: StepSizes) -> Iterator[SchedulerOutput]:
    """A prefill of a few rows, then a decode of the same rows, with drafts where they may have some."""
    num_each = 1 + sizes.num_drafts
    lengths = _row_lengths(
        num_tokens=min(_WARM_UP_TOKENS, sizes.max_num_batched_tokens),
        num_rows=min(_WARM_UP_ROWS, sizes.max_num_seqs, sizes.max_num_batched_tokens // num_each),
        longest=sizes.max_model_len - num_each,
    )
    yield _prefill(lengths, sizes=sizes)
    yield _decode(lengths, sizes=sizes, step=2)
    yield _finish(lengths, step=3)


def _row_lengths(*, num_tokens: int, num_rows: int, longest: int) -> list[int]:
    """Spread tokens evenly over rows, at least one each and none longer than `longest`."""
    num_rows = min(num_rows, num_tokens)
    share, left_over = divmod(min(num_tokens, num_rows * longest), num_rows)
    return [share + (row < left_over) for row in range(num_rows)]


def _step_id(step: int) -> StepId:
    """Steps of epoch 0, which no coordinator has."""
    return StepId(epoch=0, generation=0, step=step)


def _handles(lengths: list[int]) -> Uint64s:
    return np.arange(1, len(lengths) + 1, dtype=np.uint64)


def _prefill(lengths: list[int], *, sizes: StepSizes, step: int = 1) -> SchedulerOutput:
    """New requests whose whole prompt is computed; their tables have room for one more token and drafts."""
    new_requests = tuple(
        NewRequest(
            handle=handle,
            token_ids=np.zeros(length, dtype=np.int32),
            num_prompt_tokens=length,
            sampling=_SAMPLING,
            block_ids=(_null_blocks(length + 1 + sizes.num_drafts, sizes=sizes),)
            * sizes.num_tables,
            num_computed_tokens=0,
        )
        for handle, length in enumerate(lengths, start=1)
    )
    return SchedulerOutput(
        step_id=_step_id(step),
        base_step=step - 1,
        new_requests=new_requests,
        num_scheduled_tokens=np.array(lengths, dtype=np.int32),
        num_drafts_wanted=_num_drafts_wanted(lengths, sizes=sizes),
    )


def _null_blocks(num_tokens: int, *, sizes: StepSizes) -> Int32s:
    num_blocks = -(-min(num_tokens, sizes.max_model_len) // sizes.block_size)
    return np.zeros(num_blocks, dtype=np.int32)


def _num_drafts_wanted(lengths: list[int], *, sizes: StepSizes) -> Int32s:
    """As many for each row as it may have; no column where it may have none."""
    return np.full(len(lengths) if sizes.num_drafts else 0, sizes.num_drafts, dtype=np.int32)


def _decode(lengths: list[int], *, sizes: StepSizes, step: int) -> SchedulerOutput:
    """One more token for each of the prefilled requests, and its drafts."""
    num_rows, num_drafts = len(lengths), sizes.num_drafts
    return SchedulerOutput(
        step_id=_step_id(step),
        base_step=step - 1,
        cached_requests=CachedRequests(
            handles=_handles(lengths),
            num_computed_tokens=np.array(lengths, dtype=np.int32),
            new_block_ids=(Ragged.from_rows([[]] * num_rows),) * sizes.num_tables,
            new_token_ids=Ragged.from_rows([[0]] * num_rows),
            token_source_steps=np.zeros(num_rows, dtype=np.uint64),
            draft_token_ids=Ragged.from_rows([[0] * num_drafts] * num_rows) if num_drafts else None,
        ),
        num_scheduled_tokens=np.full(num_rows, 1 + num_drafts, dtype=np.int32),
        num_drafts_wanted=_num_drafts_wanted(lengths, sizes=sizes),
    )


def _finish(lengths: list[int], *, step: int) -> SchedulerOutput:
    """A step without tokens that drops the made-up requests."""
    return SchedulerOutput(
        step_id=_step_id(step), base_step=step - 1, finished_handles=_handles(lengths)
    )
