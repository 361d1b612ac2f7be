"""The check of a whole step against what this rank knows, before anything is mutated.

A step that fails is a bug of the coordinator: the error names row and field. Columns are compared
as arrays; only handles and new requests are looked at one by one.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.errors import InvalidStep
from common.step import Int32s, NewRequest, Ragged, SchedulerOutput
from worker_service.batch.request_states import RequestStates
from worker_service.runner.sampling_check import check_sampling
from worker_service.runner.token_feedback import TokenFeedback

# R rows of the step


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """What no step may exceed: tokens, rows, tokens of a sequence, token ids, block ids, drafts a row."""

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    vocab_size: int
    num_blocks: int
    most_drafts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """Per row int64 [R]: tokens known, computed before the step, drafts, blocks, tokens to compute.

    Blocks are those of the shortest and of the longest of its block tables.
    A row that is fed counts as if every draft of its source were right, as its plan does.
    """

    handles: list[int]
    known: NDArray[np.int64]
    computed: NDArray[np.int64]
    num_drafts: NDArray[np.int64]
    num_blocks: NDArray[np.int64]
    most_blocks: NDArray[np.int64]
    scheduled: NDArray[np.int64]

    def require(self, is_right_R: NDArray[np.bool_], complaint: Callable[[int], str]) -> None:
        """Raise InvalidStep with the complaint about the first row that is not right."""
        if not is_right_R.all():
            row = int(is_right_R.argmin())
            raise InvalidStep(f"{_place(row, self.handles[row])}: {complaint(row)}")


def validate_step(
    output: SchedulerOutput, *, states: RequestStates, feedback: TokenFeedback, limits: StepLimits
) -> None:
    """Raise InvalidStep, naming row and field, unless the step can be applied to the states."""
    num_tables = len(states.tables)
    _check_columns(output, num_tables=num_tables)
    _check_sizes(output, limits)
    _check_handles(output, states)
    _check_sources(output, states, feedback)
    _check_drafts(output, limits)
    for row, request in enumerate(output.new_requests):
        _check_new_request(row, request, limits, num_tables=num_tables)
    _check_new_values(output, limits)
    rows = _gather_rows(output, states, limits)
    _check_tracked(rows, output, states)
    _check_progress(rows, limits=limits, block_size=states.block_size)


def _place(row: int, handle: int) -> str:
    return f"row {row} (handle {handle})"


def _check_columns(output: SchedulerOutput, *, num_tables: int) -> None:
    cached = output.cached_requests
    num_cached = len(cached.handles)
    if num_cached and len(cached.new_block_ids) != num_tables:
        raise InvalidStep(
            f"new_block_ids has {len(cached.new_block_ids)} groups, this stage's KV cache has "
            f"{num_tables}"
        )
    lengths = {
        "num_computed_tokens": len(cached.num_computed_tokens),
        "new_token_ids": cached.new_token_ids.num_rows,
        "token_source_steps": len(cached.token_source_steps),
    }
    for index, group in enumerate(cached.new_block_ids):
        lengths[f"new_block_ids[{index}]"] = group.num_rows
    if cached.draft_token_ids is not None:
        lengths["draft_token_ids"] = cached.draft_token_ids.num_rows
    for field, length in lengths.items():
        if length != num_cached:
            raise InvalidStep(f"{field} has {length} rows for {num_cached} cached requests")
    num_requests = len(output.new_requests) + num_cached
    if output.num_rows != num_requests:
        raise InvalidStep(
            f"num_scheduled_tokens has {output.num_rows} rows for {num_requests} requests"
        )
    if len(output.num_drafts_wanted) not in (0, num_requests):
        raise InvalidStep(
            f"num_drafts_wanted has {len(output.num_drafts_wanted)} rows for {num_requests} requests"
        )


def _check_sizes(output: SchedulerOutput, limits: StepLimits) -> None:
    num_tokens = int(output.num_scheduled_tokens.sum(dtype=np.int64))
    if num_tokens > limits.max_num_batched_tokens:
        raise InvalidStep(
            f"num_scheduled_tokens adds up to {num_tokens}, "
            f"max_num_batched_tokens is {limits.max_num_batched_tokens}"
        )
    if output.num_rows > limits.max_num_seqs:
        raise InvalidStep(
            f"the step has {output.num_rows} rows, max_num_seqs is {limits.max_num_seqs}"
        )


def _check_handles(output: SchedulerOutput, states: RequestStates) -> None:
    dropped = [*output.finished_handles.tolist(), *output.preempted_handles.tolist()]
    dropped_set = set(dropped)
    for handle in dropped_set:
        if not states.knows(handle):
            raise InvalidStep(f"finished or preempted handle {handle} is not known here")
    if len(dropped_set) != len(dropped):
        raise InvalidStep(f"handle {_repeated(dropped)} is finished or preempted twice")

    def is_live(handle: int) -> bool:
        return states.knows(handle) and handle not in dropped_set

    handles = _row_handles(output)
    num_new = len(output.new_requests)
    for row, handle in enumerate(handles):
        if is_live(handle) == (row < num_new):
            fault = "a new request is known already" if row < num_new else "is not known here"
            raise InvalidStep(f"{_place(row, handle)}: handle: {fault}")
    if len(set(handles)) != len(handles):
        raise InvalidStep(f"handle {_repeated(handles)} has two rows")


def _row_handles(output: SchedulerOutput) -> list[int]:
    return [
        *(request.handle for request in output.new_requests),
        *output.cached_requests.handles.tolist(),
    ]


def _repeated(handles: list[int]) -> int:
    return Counter(handles).most_common(1)[0][0]


def _check_sources(output: SchedulerOutput, states: RequestStates, feedback: TokenFeedback) -> None:
    """Refuse what this worker has no source for: tokens no step has sampled."""
    cached = output.cached_requests
    sources = cached.token_source_steps
    (fed,) = np.nonzero(sources)
    if len(fed):
        sampled_last = feedback.last_steps(states.slots(cached.handles[fed])).astype(np.uint64)
        is_wrong = sources[fed] != sampled_last
        num_given = np.diff(cached.new_token_ids.offsets)[fed]
        (wrong,) = np.nonzero(is_wrong | (num_given > 0))
        if len(wrong):
            index, row = int(wrong[0]), int(fed[wrong[0]])
            place = _place(len(output.new_requests) + row, int(cached.handles[row]))
            raise InvalidStep(
                f"{place}: token_source_steps is {sources[row]} with {num_given[index]} "
                f"new_token_ids, the request was sampled last in step {sampled_last[index]}"
            )


def _check_drafts(output: SchedulerOutput, limits: StepLimits) -> None:
    """Refuse more drafts than a row may have, and drafts beside those of a source."""
    cached, first = output.cached_requests, len(output.new_requests)
    handles = _row_handles(output)
    is_fed = cached.token_source_steps > 0
    num_sent = _sent_drafts(output)
    for is_wrong, complaint in (
        (is_fed & (num_sent > 0), "draft_token_ids beside token_source_steps"),
        (num_sent > limits.most_drafts, f"draft_token_ids has more than {limits.most_drafts}"),
    ):
        if is_wrong.any():
            row = first + int(is_wrong.argmax())
            raise InvalidStep(f"{_place(row, handles[row])}: {complaint}")
    wanted = output.num_drafts_wanted
    if wanted.max(initial=0) > limits.most_drafts or wanted.min(initial=0) < 0:
        raise InvalidStep(
            f"num_drafts_wanted is in [{wanted.min()}, {wanted.max()}], at most {limits.most_drafts}"
        )


def _sent_drafts(output: SchedulerOutput) -> NDArray[np.int64]:
    """Drafts sent with each cached row."""
    drafts = output.cached_requests.draft_token_ids
    if drafts is None:
        return np.zeros(len(output.cached_requests.handles), dtype=np.int64)
    return drafts.lengths


def _check_new_request(
    row: int, request: NewRequest, limits: StepLimits, *, num_tables: int
) -> None:
    place = _place(row, request.handle)
    if len(request.block_ids) != num_tables:
        raise InvalidStep(
            f"{place}: block_ids has {len(request.block_ids)} groups, this stage's KV cache has "
            f"{num_tables}"
        )
    if not 1 <= request.num_prompt_tokens <= len(request.token_ids):
        raise InvalidStep(
            f"{place}: num_prompt_tokens is {request.num_prompt_tokens} "
            f"of {len(request.token_ids)} token_ids"
        )
    if not 0 <= request.num_computed_tokens < len(request.token_ids):
        raise InvalidStep(
            f"{place}: num_computed_tokens is {request.num_computed_tokens} "
            f"of {len(request.token_ids)} token_ids"
        )
    _check_range(request.token_ids, limit=limits.vocab_size, field=f"{place}: token_ids")
    for block_ids in request.block_ids:
        _check_range(block_ids, limit=limits.num_blocks, field=f"{place}: block_ids")
    check_sampling(request.sampling, place=place, vocab_size=limits.vocab_size)


def _check_range(values: Int32s, *, limit: int, field: str) -> None:
    if len(values) and not 0 <= values.min() <= values.max() < limit:
        outside = values[(values < 0) | (values >= limit)]
        raise InvalidStep(f"{field} holds {outside[0]}, which is not in [0, {limit})")


def _check_new_values(output: SchedulerOutput, limits: StepLimits) -> None:
    cached = output.cached_requests

    def check(ragged: Ragged, *, limit: int, field: str) -> None:
        values = ragged.values
        if len(values) and not 0 <= values.min() <= values.max() < limit:
            for index, handle in enumerate(cached.handles.tolist()):
                place = _place(len(output.new_requests) + index, handle)
                _check_range(ragged.row(index), limit=limit, field=f"{place}: {field}")

    for group in cached.new_block_ids:
        check(group, limit=limits.num_blocks, field="new_block_ids")
    check(cached.new_token_ids, limit=limits.vocab_size, field="new_token_ids")
    if cached.draft_token_ids is not None:
        check(cached.draft_token_ids, limit=limits.vocab_size, field="draft_token_ids")


def _gather_rows(output: SchedulerOutput, states: RequestStates, limits: StepLimits) -> _Rows:
    """Tokens, blocks and counts of every row as they would be after the step's additions."""
    new, cached = output.new_requests, output.cached_requests
    slots = states.slots(cached.handles)
    is_fed = cached.token_source_steps > 0
    added_tokens = cached.new_token_ids.lengths
    num_blocks = _num_blocks(output, states)
    planned = states.num_computed[slots].astype(np.int64) + states.num_room[slots]
    computed = states.num_computed[slots] + states.num_accepted(slots, added_tokens)
    num_scheduled = output.num_scheduled_tokens.astype(np.int64)
    num_fed = np.minimum(num_scheduled[len(new) :] - 1, limits.most_drafts)

    def column(of_new: list[int], of_cached: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.concatenate([np.array(of_new, dtype=np.int64), of_cached]) if new else of_cached

    return _Rows(
        handles=_row_handles(output),
        known=column(
            [len(request.token_ids) for request in new],
            np.where(is_fed, planned + 1, states.tokens.lengths[slots] + added_tokens),
        ),
        computed=column(
            [request.num_computed_tokens for request in new],
            np.where(is_fed, planned, computed),
        ),
        num_drafts=column([0 for _ in new], np.where(is_fed, num_fed, _sent_drafts(output))),
        num_blocks=num_blocks.min(axis=0),
        most_blocks=num_blocks.max(axis=0),
        scheduled=num_scheduled,
    )


def _num_blocks(output: SchedulerOutput, states: RequestStates) -> NDArray[np.int64]:
    """Blocks of every row in each block table after the step's additions; [tables, R]."""
    cached = output.cached_requests
    slots = states.slots(cached.handles)
    of_new = [[len(ids) for ids in request.block_ids] for request in output.new_requests]
    of_cached = [
        table.lengths[slots].astype(np.int64) + group.lengths
        for table, group in zip(states.tables, cached.new_block_ids, strict=False)
        if len(slots)
    ]
    return np.concatenate(
        [
            np.array(of_new, dtype=np.int64).reshape(-1, len(states.tables)).T,
            np.array(of_cached, dtype=np.int64).reshape(len(states.tables), -1),
        ],
        axis=1,
    )


def _check_tracked(rows: _Rows, output: SchedulerOutput, states: RequestStates) -> None:
    """Compare the cached rows' computed counts with those this rank has tracked."""
    claimed = rows.computed.copy()
    claimed[len(output.new_requests) :] = output.cached_requests.num_computed_tokens
    rows.require(
        claimed == rows.computed,
        lambda row: f"num_computed_tokens is {claimed[row]}, this worker has {rows.computed[row]}",
    )


def _check_progress(rows: _Rows, *, limits: StepLimits, block_size: int) -> None:
    """Check that each row computes something, that it is known or guessed, fits, and has blocks."""
    end = rows.computed + rows.scheduled
    last = rows.known + rows.num_drafts
    rows.require(
        rows.scheduled >= 1,
        lambda row: f"num_scheduled_tokens is {rows.scheduled[row]}, at least 1",
    )
    rows.require(
        last <= limits.max_model_len,
        lambda row: f"token_ids are {last[row]}, max_model_len is {limits.max_model_len}",
    )
    rows.require(
        end <= last,
        lambda row: f"num_scheduled_tokens reaches token {end[row]} of {last[row]} known ones",
    )
    rows.require(
        (end == last) | (rows.num_drafts == 0),
        lambda row: f"num_scheduled_tokens ends at token {end[row]}, its drafts at {last[row]}",
    )
    rows.require(
        rows.num_blocks * block_size >= end,
        lambda row: (
            f"block_ids are {rows.num_blocks[row]} blocks of {block_size}, too few for {end[row]} tokens"
        ),
    )
    most_blocks = -(-limits.max_model_len // block_size)
    rows.require(
        rows.most_blocks <= most_blocks,
        lambda row: (
            f"block_ids are {rows.most_blocks[row]} blocks, a sequence has at most {most_blocks}"
        ),
    )
