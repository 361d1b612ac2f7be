"""Protobuf spelling of `common.step`: what a step asks.

Decoding checks all that can be known without the worker's state; a malformed message raises
InvalidStep naming the field. What contradicts the worker's state is found by the runner.
"""

import numpy as np
from stepwire.v1 import step_pb2 as pb

from common.codecs.columns import (
    INT32,
    UINT64,
    decode_column,
    decode_ragged,
    decode_rows,
    encode_column,
    encode_optional_ragged,
    encode_ragged,
    encode_rows,
)
from common.codecs.requests_codec import decode_sampling_params, encode_sampling_params
from common.errors import InvalidStep
from common.step import (
    CachedRequests,
    Int32s,
    NewRequest,
    Phase,
    SchedulerOutput,
    StepId,
    StepKey,
    Uint64s,
)
from common.trace_context import parse_trace_context

_PHASE = {Phase.EXECUTE: pb.PHASE_EXECUTE, Phase.SAMPLE: pb.PHASE_SAMPLE}
_PHASE_BY_NUMBER = {number: phase for phase, number in _PHASE.items()}


def encode_step_key(key: StepKey) -> pb.StepKey:
    """Spell a step key."""
    step_id = key.step_id
    return pb.StepKey(
        epoch=step_id.epoch,
        generation=step_id.generation,
        step=step_id.step,
        phase=_PHASE[key.phase],
    )


def decode_step_key(key: pb.StepKey) -> StepKey:
    """Read a step key; all three numbers are at least 1 and the phase is known."""
    phase = _PHASE_BY_NUMBER.get(key.phase)
    if phase is None:
        raise InvalidStep(f"key.phase: {key.phase} is not a phase")
    return StepKey(step_id=_step_id(key.epoch, key.generation, key.step), phase=phase)


def _step_id(epoch: int, generation: int, step: int) -> StepId:
    for field, number in (("epoch", epoch), ("generation", generation), ("step", step)):
        if number < 1:
            raise InvalidStep(f"{field}: counts from 1")
    return StepId(epoch=epoch, generation=generation, step=step)


def encode_scheduler_output(output: SchedulerOutput) -> pb.SchedulerOutput:
    """Spell a step."""
    step_id = output.step_id
    return pb.SchedulerOutput(
        epoch=step_id.epoch,
        generation=step_id.generation,
        step=step_id.step,
        base_step=output.base_step,
        new_requests=[_encode_new_request(request) for request in output.new_requests],
        cached_requests=_encode_cached_requests(output.cached_requests),
        num_scheduled_tokens=encode_column(output.num_scheduled_tokens, INT32),
        finished_handles=encode_column(output.finished_handles, UINT64),
        preempted_handles=encode_column(output.preempted_handles, UINT64),
        grammar_mask_follows=output.grammar_mask_follows,
        want_state_digest=output.want_state_digest,
        num_drafts_wanted=encode_column(output.num_drafts_wanted, INT32),
    )


def _encode_new_request(request: NewRequest) -> pb.NewRequest:
    trace = request.trace
    return pb.NewRequest(
        handle=request.handle,
        token_ids=encode_column(request.token_ids, INT32),
        num_prompt_tokens=request.num_prompt_tokens,
        sampling=encode_sampling_params(request.sampling),
        block_ids=encode_rows(request.block_ids),
        num_computed_tokens=request.num_computed_tokens,
        traceparent=None if trace is None else trace.traceparent,
        tracestate=None if trace is None else trace.state or None,
    )


def _encode_cached_requests(requests: CachedRequests) -> pb.CachedRequests:
    has_sources = bool(requests.token_source_steps.any())
    return pb.CachedRequests(
        handles=encode_column(requests.handles, UINT64),
        num_computed_tokens=encode_column(requests.num_computed_tokens, INT32),
        new_block_ids=[encode_ragged(group) for group in requests.new_block_ids],
        new_token_ids=encode_ragged(requests.new_token_ids),
        token_source_steps=(
            encode_column(requests.token_source_steps, UINT64) if has_sources else b""
        ),
        draft_token_ids=encode_optional_ragged(requests.draft_token_ids),
    )


def decode_scheduler_output(output: pb.SchedulerOutput) -> SchedulerOutput:
    """Read a step and check that its parts agree with each other."""
    step_id = _step_id(output.epoch, output.generation, output.step)
    if output.base_step >= output.step:
        raise InvalidStep(f"base_step: {output.base_step} is not before step {output.step}")
    new_requests = tuple(
        _decode_new_request(request, field=f"new_requests[{row}]")
        for row, request in enumerate(output.new_requests)
    )
    cached_requests = (
        _decode_cached_requests(output.cached_requests)
        if output.HasField("cached_requests")
        else CachedRequests.none()
    )
    _check_rows_differ(new_requests, cached_requests)
    return SchedulerOutput(
        step_id=step_id,
        base_step=output.base_step,
        new_requests=new_requests,
        cached_requests=cached_requests,
        num_scheduled_tokens=decode_column(
            output.num_scheduled_tokens,
            INT32,
            field="num_scheduled_tokens",
            length=len(new_requests) + len(cached_requests.handles),
        ),
        finished_handles=_decode_distinct(output.finished_handles, field="finished_handles"),
        preempted_handles=_decode_distinct(output.preempted_handles, field="preempted_handles"),
        grammar_mask_follows=output.grammar_mask_follows,
        want_state_digest=output.want_state_digest,
        num_drafts_wanted=_decode_wanted(
            output.num_drafts_wanted, rows=len(new_requests) + len(cached_requests.handles)
        ),
    )


def _decode_wanted(column: bytes, *, rows: int) -> Int32s:
    length = rows if column else 0
    wanted = decode_column(column, INT32, field="num_drafts_wanted", length=length)
    if wanted.min(initial=0) < 0:
        raise InvalidStep(f"num_drafts_wanted: {wanted.min()} is less than 0")
    return wanted


def _decode_new_request(request: pb.NewRequest, *, field: str) -> NewRequest:
    for part in ("sampling", "block_ids"):
        if not request.HasField(part):
            raise InvalidStep(f"{field}.{part}: missing")
    token_ids = decode_column(request.token_ids, INT32, field=f"{field}.token_ids")
    if not 1 <= request.num_prompt_tokens <= len(token_ids):
        raise InvalidStep(
            f"{field}.num_prompt_tokens: {request.num_prompt_tokens} of {len(token_ids)} tokens"
        )
    if request.num_computed_tokens >= len(token_ids):
        raise InvalidStep(
            f"{field}.num_computed_tokens: {request.num_computed_tokens} of {len(token_ids)} "
            "tokens leave none to compute"
        )
    return NewRequest(
        handle=request.handle,
        token_ids=token_ids,
        num_prompt_tokens=request.num_prompt_tokens,
        sampling=decode_sampling_params(request.sampling, field=f"{field}.sampling"),
        block_ids=decode_rows(request.block_ids, field=f"{field}.block_ids"),
        num_computed_tokens=request.num_computed_tokens,
        # A malformed one is as if it were absent: no step fails for the sake of a trace.
        trace=parse_trace_context(request.traceparent, request.tracestate),
    )


def _decode_cached_requests(requests: pb.CachedRequests) -> CachedRequests:
    field = "cached_requests"
    handles = decode_column(requests.handles, UINT64, field=f"{field}.handles")
    rows = len(handles)
    return CachedRequests(
        handles=handles,
        num_computed_tokens=decode_column(
            requests.num_computed_tokens, INT32, field=f"{field}.num_computed_tokens", length=rows
        ),
        new_block_ids=tuple(
            decode_ragged(group, field=f"{field}.new_block_ids[{index}]", num_rows=rows)
            for index, group in enumerate(requests.new_block_ids)
        ),
        new_token_ids=decode_ragged(
            requests.new_token_ids, field=f"{field}.new_token_ids", num_rows=rows
        ),
        token_source_steps=_decode_sources(requests.token_source_steps, rows),
        draft_token_ids=(
            decode_ragged(requests.draft_token_ids, field=f"{field}.draft_token_ids", num_rows=rows)
            if requests.HasField("draft_token_ids")
            else None
        ),
    )


def _decode_sources(column: bytes, rows: int) -> Uint64s:
    if not column:
        return np.zeros(rows, dtype=UINT64)
    return decode_column(column, UINT64, field="cached_requests.token_source_steps", length=rows)


def _decode_distinct(column: bytes, *, field: str) -> Uint64s:
    handles = decode_column(column, UINT64, field=field)
    _check_distinct(handles, field=field)
    return handles


def _check_rows_differ(new: tuple[NewRequest, ...], cached: CachedRequests) -> None:
    new_handles = np.array([request.handle for request in new], dtype=UINT64)
    _check_distinct(np.concatenate([new_handles, cached.handles]), field="handles")
    groups = {len(request.block_ids) for request in new}
    if len(cached.handles):
        groups.add(len(cached.new_block_ids))
    if len(groups) > 1:
        raise InvalidStep(f"block_ids: rows disagree on the KV cache groups: {sorted(groups)}")


def _check_distinct(handles: Uint64s, *, field: str) -> None:
    if len(handles) < 2:
        return
    ordered = np.sort(handles)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(repeated):
        raise InvalidStep(f"{field}: handle {repeated[0]} appears more than once")
