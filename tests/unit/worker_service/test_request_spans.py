"""Facts of the spans of the requests that a rank holds."""

from dataclasses import replace

import numpy as np

from common.step import NewRequest, SchedulerOutput
from common.worker_api import Rank
from tests.fakes.manual_steps import cached_step, new_request, step_id
from tests.fakes.noted_spans import CLIENT, NotedSpans
from worker_service.request_spans import RequestSpans


def step(*new: NewRequest, finished=(), preempted=()) -> SchedulerOutput:
    """A step that brings and drops requests."""
    return SchedulerOutput(
        step_id=step_id(2),
        base_step=1,
        new_requests=new,
        num_scheduled_tokens=np.ones(len(new), dtype=np.int32),
        finished_handles=np.array(finished, dtype=np.uint64),
        preempted_handles=np.array(preempted, dtype=np.uint64),
    )


def test_a_span_lasts_as_long_as_the_rank_holds_the_request():
    """It is the child of the coordinator's; a request without a trace has none."""
    tracer = NotedSpans()
    spans = RequestSpans(tracer, rank=Rank(stage=1))
    spans.note_step(step(new_request(7, CLIENT), new_request(8, None)))
    spans.note_step(cached_step(3))
    (span,) = tracer.spans
    assert (span.parent, span.attributes) == (CLIENT, None)
    spans.note_step(step(finished=[7, 8]))
    assert span.attributes == {
        "stepwire.rank": "stage 1",
        "stepwire.handle": 7,
        "stepwire.end": "finished",
    }


def test_a_preempted_request_that_comes_back_has_another_span():
    """Also where one step drops it and brings it back."""
    tracer = NotedSpans()
    spans = RequestSpans(tracer, rank=Rank())
    spans.note_step(step(new_request(7, CLIENT)))
    spans.note_step(step(new_request(7, CLIENT), preempted=[7]))
    spans.note_step(step(finished=[7]))
    ends = [span.attributes["stepwire.end"] for span in tracer.spans]
    assert ends == ["preempted", "finished"]


def test_the_end_of_a_generation_ends_what_is_left():
    """Once, with the reason."""
    tracer = NotedSpans()
    spans = RequestSpans(tracer, rank=Rank())
    spans.note_step(step(new_request(7, CLIENT)))
    spans.end_all()
    spans.end_all()
    (span,) = tracer.spans
    assert (span.attributes["stepwire.end"], span.failure) == ("generation over", None)


def test_traces_of_a_step_are_known_without_a_tracer():
    """For the log: of its rows alone, and only those that have one."""
    spans = RequestSpans()
    other = replace(CLIENT, trace_id="1" * 32)
    spans.note_step(step(new_request(7, CLIENT), new_request(8, other), new_request(9, None)))
    assert spans.trace_ids(cached_step(3)) == [CLIENT.trace_id]
