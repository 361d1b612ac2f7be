"""Facts of steps that are planned before the tokens of the step before them are known."""

from dataclasses import replace

import pytest

from common.config import ScheduleConfig
from common.requests import FinishReason
from common.step import SchedulerOutput
from tests.fakes.scripted_model import scripted_tokens
from tests.fakes.scripted_replica import ScriptedReplica, handles_of, request

ASYNC = ScheduleConfig(check_state_every=1)
PROMPT = (1, 2, 3)


def _sources(output: SchedulerOutput) -> list[int]:
    return output.cached_requests.token_source_steps.tolist()


def test_a_step_is_planned_behind_the_one_that_samples():
    """The second step names the first as the source of its token, and carries none itself."""
    replica = ScriptedReplica(ASYNC)
    handle = replica.scheduler.add(request(PROMPT, max_tokens=9))
    first, second = replica.plan_all()
    assert (handles_of(first), handles_of(second)) == ([handle], [handle])
    assert _sources(second) == [first.step_id.step]
    assert second.cached_requests.new_token_ids.row(0).tolist() == []
    assert second.cached_requests.num_computed_tokens.tolist() == [len(PROMPT)]
    replica.run_until_idle()
    assert replica.token_ids[handle] == list(scripted_tokens(PROMPT, 9))


def test_without_it_a_step_waits_for_the_tokens_of_the_one_before():
    """Synchronous scheduling has one step in flight per stage, and sends every token itself."""
    replica = ScriptedReplica(replace(ASYNC, async_scheduling=False))
    replica.scheduler.add(request(PROMPT, max_tokens=9))
    (first,) = replica.plan_all()
    replica.commit()
    (second,) = replica.plan_all()
    assert _sources(first) + _sources(second) == [0]
    assert len(second.cached_requests.new_token_ids.row(0)) == 1


def test_a_committed_token_is_sent_and_not_fed():
    """Once every step in flight is committed a row carries its token, as workers need no source."""
    replica = ScriptedReplica(ASYNC)
    replica.scheduler.add(request(PROMPT, max_tokens=9))
    replica.plan_all()
    replica.commit()
    replica.commit()
    output = replica.plan()
    assert output is not None
    assert _sources(output) == [0]
    assert (
        output.cached_requests.new_token_ids.row(0).tolist()
        == list(scripted_tokens(PROMPT, 2))[-1:]
    )


def test_chunks_of_a_prompt_follow_each_other_in_flight():
    """Both steps in flight compute a part of the prompt; neither has a source, as nothing is sampled."""
    replica = ScriptedReplica(replace(ASYNC, max_num_batched_tokens=4))
    handle = replica.scheduler.add(request(tuple(range(10)), max_tokens=2))
    outputs = replica.plan_all()
    assert [output.num_scheduled_tokens.tolist() for output in outputs] == [[4], [4]]
    assert _sources(outputs[1]) == [0]
    replica.run_until_idle()
    assert replica.token_ids[handle] == list(scripted_tokens(range(10), 2))


def test_no_step_is_planned_past_the_longest_output():
    """An end by length is known beforehand, so a request of n tokens costs n steps."""
    replica = ScriptedReplica(ASYNC)
    handle = replica.scheduler.add(request(PROMPT, max_tokens=4))
    replica.run_until_idle()
    assert replica.finish_reasons == {handle: FinishReason.LENGTH}
    assert replica.num_computed_tokens == len(PROMPT) + 3


@pytest.mark.parametrize("is_aborted", [True, False])
def test_a_late_end_leaves_no_trace(*, is_aborted: bool):
    """What was planned before an end was known yields no token, and its blocks are free at once."""
    eos = scripted_tokens(PROMPT, 2)[1]
    replica = ScriptedReplica(ASYNC, num_blocks=8, eos_token_ids=frozenset({eos}))
    handle = replica.scheduler.add(request(PROMPT, max_tokens=50))
    replica.plan_all()
    replica.commit()
    replica.plan_all()
    if is_aborted:
        replica.scheduler.abort(handle)
        assert replica.commit() == []
    else:
        ((_, delta),) = replica.commit()
        assert delta.finish_reason is FinishReason.STOP
    assert replica.scheduler.num_free_blocks == 7
    assert replica.commit() == []
    replica.run_until_idle()
    assert replica.token_ids[handle] == list(scripted_tokens(PROMPT, 2))[: 1 + (not is_aborted)]
    assert replica.scheduler.counters.num_generated_tokens == len(replica.token_ids[handle])
    assert replica.finished_handles == [handle]


def test_blocks_of_a_late_end_go_to_others_at_once():
    """The next step may hand out a block that the step in flight still writes: it runs later."""
    eos = scripted_tokens(PROMPT, 2)[1]
    replica = ScriptedReplica(ASYNC, num_blocks=3, eos_token_ids=frozenset({eos}))
    replica.scheduler.add(request(PROMPT, max_tokens=50))
    waiting = replica.scheduler.add(request((7, 8, 9, 10, 11), max_tokens=3, ignore_eos=True))
    replica.plan_all()
    replica.commit()
    (in_flight,) = replica.plan_all()
    replica.commit()
    (after,) = replica.plan_all()
    assert replica.has_steps_in_flight
    assert handles_of(in_flight) != handles_of(after) == [waiting]
    replica.run_until_idle()
    assert replica.token_ids[waiting] == list(scripted_tokens((7, 8, 9, 10, 11), 3))


def test_a_block_is_published_as_far_as_its_step_computed_it():
    """The commit of a step publishes nothing that only a later step in flight fills."""
    replica = ScriptedReplica(replace(ASYNC, max_num_batched_tokens=8), block_size=4, num_blocks=32)
    long = tuple(range(17))
    first = replica.scheduler.add(request(long, max_tokens=2))
    replica.plan_all()
    replica.commit()
    # Two blocks are committed, two more are in flight when the request ends.
    replica.scheduler.abort(first)
    replica.commit()
    replica.scheduler.add(request(long, max_tokens=2))
    output = replica.plan()
    assert output is not None
    assert output.new_requests[0].num_computed_tokens == 8


def test_placeholders_need_blocks():
    """A sequence gets the block of a token that is still in flight."""
    replica = ScriptedReplica(ASYNC, num_blocks=8, block_size=4)
    replica.scheduler.add(request((1, 2, 3, 4), max_tokens=9))
    first, second = replica.plan_all()
    assert len(first.new_requests[0].block_ids[0]) == 1
    assert len(second.cached_requests.new_block_ids[0].row(0)) == 1


def test_a_preempted_sequence_keeps_its_tokens_in_flight():
    """It waits until all are committed and comes back with them; nothing is sampled twice."""
    replica = ScriptedReplica(ASYNC, num_blocks=6, block_size=4)
    old = replica.scheduler.add(request((1, 2, 3, 4), max_tokens=12))
    young = replica.scheduler.add(request((5, 6, 7), max_tokens=8))
    readmitted = None
    while replica.plan_all() or replica.has_steps_in_flight:
        before = len(replica.token_ids[young])
        replica.commit()
        output = replica.plan()
        for new in output.new_requests if output else ():
            if len(new.token_ids) > new.num_prompt_tokens:
                readmitted, known = new, len(replica.token_ids[young])
                assert before <= known
    assert replica.scheduler.counters.num_preemptions == 1
    assert readmitted is not None
    assert readmitted.token_ids[3:].tolist() == list(scripted_tokens((5, 6, 7), 8))[:known]
    assert replica.token_ids[old] == list(scripted_tokens((1, 2, 3, 4), 12))
    assert replica.token_ids[young] == list(scripted_tokens((5, 6, 7), 8))


def test_a_failed_row_takes_the_one_behind_it_along():
    """A request that fails alone has a later row in flight, whose result is dropped."""
    replica = ScriptedReplica(ASYNC, poison_token_id=200)
    bad = replica.scheduler.add(request((200,), max_tokens=4))
    good = replica.scheduler.add(request((1,), max_tokens=4))
    replica.run_until_idle()
    assert replica.token_ids[good] == list(scripted_tokens((1,), 4))
    assert bad not in replica.token_ids
    assert replica.scheduler.num_free_blocks == 63


def test_every_cohort_is_one_step_ahead():
    """Over two stages three steps are in flight, and the cohorts go on taking turns."""
    replica = ScriptedReplica(ASYNC, num_stages=2)
    for token in range(4):
        replica.scheduler.add(request((token,), max_tokens=9))
    steps = [handles_of(output) for output in replica.plan_all()]
    assert steps == [[1, 2], [3, 4], [1, 2]]
    for _ in range(3):
        replica.commit()
        steps += [handles_of(output) for output in replica.plan_all()]
    assert steps == [[1, 2], [3, 4]] * 3


def test_one_sequence_has_two_steps_in_flight_and_leaves_room():
    """However many steps may be in flight, a cohort takes two, so that others find room."""
    replica = ScriptedReplica(replace(ASYNC, max_steps_in_flight=5), num_stages=2)
    first = replica.scheduler.add(request((1,), max_tokens=30))
    assert len(replica.plan_all()) == 2
    second = replica.scheduler.add(request((2,), max_tokens=30))
    assert [handles_of(output) for output in replica.plan_all()] == [[second], [second]]
    replica.run_until_idle()
    assert replica.token_ids[first] == list(scripted_tokens((1,), 30))
    assert replica.token_ids[second] == list(scripted_tokens((2,), 30))


def test_a_sequence_moves_with_its_step_in_flight():
    """A cohort that ran dry is filled though no cohort is ever idle; sources stay right."""
    replica = ScriptedReplica(ASYNC, num_stages=2, num_blocks=256)
    for token in range(8):
        replica.scheduler.add(request((token,), max_tokens=2 if token >= 4 else 20))
    sizes = [output.num_rows for output in replica.plan_all()]
    for _ in range(12):
        replica.commit()
        sizes += [output.num_rows for output in replica.plan_all()]
    assert sizes[-2:] == [2, 2]
    replica.run_until_idle()
    assert replica.token_ids[1] == list(scripted_tokens((0,), 20))


def test_end_of_a_generation_with_two_steps_in_flight():
    """Nothing of it is left: the next generation starts at step 1 with all blocks and no source."""
    replica = ScriptedReplica(ASYNC)
    replica.scheduler.add(request(PROMPT, max_tokens=5))
    assert len(replica.plan_all()) == 2
    replica.scheduler.end_generation()
    assert replica.scheduler.num_free_blocks == 63
    replica.scheduler.begin_generation(epoch=1, generation=2)
    replica.scheduler.add(request((1,), max_tokens=3, request_id="b"))
    first, second = replica.scheduler.schedule(), replica.scheduler.schedule()
    assert first is not None
    assert second is not None
    assert (first.step_id.step, _sources(second)) == (1, [1])
