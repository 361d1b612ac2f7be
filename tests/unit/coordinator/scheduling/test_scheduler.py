"""Facts of the scheduler, on hand-built requests and a scripted model."""

from dataclasses import replace

import numpy as np
import pytest

from common.config import ScheduleConfig
from common.errors import InvalidRequest, Overloaded, StepFailed
from common.requests import FinishReason
from common.step import ModelRunnerOutput, Phase, StepKey
from tests.fakes.noted_spans import CLIENT
from tests.fakes.scripted_model import next_token, scripted_tokens
from tests.fakes.scripted_replica import ScriptedReplica, handles_of, request

ONE_COHORT = ScheduleConfig(pp_cohorts=1, max_steps_in_flight=1)


def test_tokens_are_those_of_the_sequence_alone():
    """Two requests in one batch get the tokens that each would get alone."""
    replica = ScriptedReplica(ONE_COHORT)
    first = replica.scheduler.add(request((1, 2, 3), max_tokens=5))
    second = replica.scheduler.add(request((9,), max_tokens=7))
    replica.run_until_idle()
    assert replica.token_ids[first] == list(scripted_tokens((1, 2, 3), 5))
    assert replica.token_ids[second] == list(scripted_tokens((9,), 7))
    assert set(replica.finish_reasons.values()) == {FinishReason.LENGTH}


def test_waiting_tokens_are_counted():
    """Prompts count as waiting until they are admitted."""
    replica = ScriptedReplica(ONE_COHORT)
    for prompt in ((1, 2, 3), (9,)):
        replica.scheduler.add(request(prompt, max_tokens=1))
    assert replica.scheduler.num_waiting_tokens == 4
    replica.run_until_idle()
    assert replica.scheduler.num_waiting_tokens == 0


def test_a_long_prompt_is_computed_in_chunks():
    """A prompt over the budget takes several steps, and only the last one samples."""
    replica = ScriptedReplica(replace(ONE_COHORT, max_num_batched_tokens=4))
    handle = replica.scheduler.add(request(tuple(range(10)), max_tokens=1))
    counts = []
    while (output := replica.plan()) is not None:
        counts.append(output.num_scheduled_tokens.tolist())
        replica.commit()
    assert counts == [[4], [4], [2]]
    assert replica.token_ids[handle] == list(scripted_tokens(range(10), 1))


def test_running_sequences_go_before_waiting_ones():
    """A decoding sequence keeps its token of the budget; the new prompt gets the rest."""
    replica = ScriptedReplica(replace(ONE_COHORT, max_num_batched_tokens=4))
    old = replica.scheduler.add(request((1, 2), max_tokens=9))
    replica.plan()
    replica.commit()
    new = replica.scheduler.add(request(tuple(range(8)), max_tokens=1))
    output = replica.plan()
    assert output is not None
    assert dict(zip(handles_of(output), output.num_scheduled_tokens.tolist(), strict=True)) == {
        old: 1,
        new: 3,
    }


def test_cached_rows_carry_only_what_is_new():
    """A decode step sends the committed token, and a block id only when one was added."""
    replica = ScriptedReplica(ONE_COHORT, block_size=4)
    replica.scheduler.add(request((1, 2, 3), max_tokens=9))
    replica.plan()
    replica.commit()
    fits = replica.plan()
    replica.commit()
    grows = replica.plan()
    assert fits is not None
    assert grows is not None
    assert fits.cached_requests.new_token_ids.row(0).tolist() == [next_token((1, 2, 3))]
    assert fits.cached_requests.new_block_ids[0].row(0).tolist() == []
    assert len(grows.cached_requests.new_block_ids[0].row(0)) == 1
    assert grows.cached_requests.num_computed_tokens.tolist() == [4]


def test_sequence_limit_is_lowered_to_the_token_budget():
    """More sequences than tokens in a step never run at once."""
    config = replace(ONE_COHORT, max_num_seqs=8, max_num_batched_tokens=2)
    replica = ScriptedReplica(config)
    for token in range(5):
        replica.scheduler.add(request((token,), max_tokens=4))
    replica.plan()
    assert replica.scheduler.num_running == 2


def test_full_queue_refuses():
    """A request that finds the waiting queue full is refused and leaves nothing behind."""
    replica = ScriptedReplica(replace(ONE_COHORT, max_waiting=1))
    replica.scheduler.add(request((1,), max_tokens=1))
    with pytest.raises(Overloaded):
        replica.scheduler.add(request((1,), max_tokens=1))
    assert replica.scheduler.num_waiting == 1


@pytest.mark.parametrize(("num_blocks", "max_model_len"), [(64, 8), (3, 512)])
def test_prompt_without_room_for_a_token_is_refused(num_blocks: int, max_model_len: int):
    """A prompt that fills the model's length, or the whole cache, is refused by name."""
    replica = ScriptedReplica(ONE_COHORT, num_blocks=num_blocks, max_model_len=max_model_len)
    with pytest.raises(InvalidRequest, match="8 tokens"):
        replica.scheduler.add(request(tuple(range(8)), max_tokens=1))


def test_sequence_ends_where_the_cache_ends():
    """A sequence that fills the whole cache ends by length instead of preempting itself for ever."""
    replica = ScriptedReplica(ONE_COHORT, num_blocks=3, block_size=4)
    handle = replica.scheduler.add(request((1, 2, 3), max_tokens=100))
    replica.run_until_idle()
    assert replica.token_ids[handle] == list(scripted_tokens((1, 2, 3), 5))
    assert replica.finish_reasons[handle] is FinishReason.LENGTH


@pytest.mark.parametrize(("has_prefix_cache", "num_computed"), [(False, 0), (True, 4)])
def test_the_youngest_is_preempted_and_comes_back_with_its_tokens(
    *, has_prefix_cache: bool, num_computed: int
):
    """When blocks run out the youngest gives way; it returns in full, under the same handle.

    What is left of its blocks in the prefix cache is not computed again.
    """
    replica = ScriptedReplica(
        ONE_COHORT, num_blocks=6, block_size=4, has_prefix_cache=has_prefix_cache
    )
    old = replica.scheduler.add(request((1, 2, 3, 4), max_tokens=12))
    traced = replace(request((5, 6, 7), max_tokens=8), trace=CLIENT)
    young = replica.scheduler.add(traced)
    readmitted = None
    while (output := replica.plan()) is not None:
        for new in output.new_requests:
            readmitted = new if len(new.token_ids) > new.num_prompt_tokens else readmitted
        replica.commit()
    assert readmitted is not None
    assert readmitted.handle == young
    assert readmitted.num_prompt_tokens == 3
    assert readmitted.num_computed_tokens == num_computed
    assert readmitted.trace == CLIENT
    assert replica.scheduler.counters.num_preemptions == replica.num_preempted_handles == 1
    assert replica.token_ids[old] == list(scripted_tokens((1, 2, 3, 4), 12))
    assert replica.token_ids[young] == list(scripted_tokens((5, 6, 7), 8))


def test_preempted_sequence_waits_for_its_step_in_flight():
    """A sequence preempted in flight, and all behind it, wait until that step is committed."""
    config = ScheduleConfig(
        pp_cohorts=3, max_steps_in_flight=3, max_num_batched_tokens=2, async_scheduling=False
    )
    replica = ScriptedReplica(config, num_blocks=8, block_size=4)
    scheduler = replica.scheduler
    old = scheduler.add(request((1, 2, 3, 4), max_tokens=20))
    young = scheduler.add(request(tuple(range(20)), max_tokens=3))
    replica.plan_all()
    while scheduler.counters.num_preemptions == 0:
        replica.commit()
        replica.plan_all()
    last = scheduler.add(request((8,), max_tokens=1))
    scheduler.abort(old)
    assert replica.handles_in_flight == [young, old]
    assert scheduler.num_free_blocks == 7
    assert replica.plan() is None
    replica.commit()
    assert replica.plan() is not None
    replica.run_until_idle()
    assert replica.token_ids[young] == list(scripted_tokens(range(20), 3))
    assert replica.token_ids[last] == list(scripted_tokens((8,), 1))
    assert scheduler.num_free_blocks == 7


def test_admission_leaves_a_block_for_every_running_sequence():
    """A sequence waits while admitting it would leave the running ones no block to grow by."""
    replica = ScriptedReplica(ONE_COHORT, num_blocks=5, block_size=4)
    for _ in range(2):
        replica.scheduler.add(request((1, 2, 3, 4), max_tokens=2))
    third = replica.scheduler.add(request((1, 2, 3, 4), max_tokens=2))
    replica.plan()
    assert replica.scheduler.num_running == 2
    assert replica.scheduler.num_free_blocks == 2
    replica.run_until_idle()
    assert replica.scheduler.counters.num_preemptions == 0
    assert replica.token_ids[third] == list(scripted_tokens((1, 2, 3, 4), 2))


def test_end_of_sequence_is_part_of_the_output():
    """The EOS token ends the output, and its delta holds it."""
    prompt = (1, 2, 3)
    eos = scripted_tokens(prompt, 3)[2]
    replica = ScriptedReplica(ONE_COHORT, eos_token_ids=frozenset({eos}))
    handle = replica.scheduler.add(request(prompt, max_tokens=50))
    replica.run_until_idle()
    assert replica.token_ids[handle][-1] == eos
    assert replica.finish_reasons[handle] is FinishReason.STOP


@pytest.mark.parametrize("is_in_flight", [True, False])
def test_abort_frees_blocks_and_yields_nothing_more(*, is_in_flight: bool):
    """An aborted sequence gives its blocks back at once, also while a step of it is in flight."""
    replica = ScriptedReplica(ONE_COHORT, num_blocks=8)
    handle = replica.scheduler.add(request((1, 2, 3), max_tokens=50))
    replica.plan()
    if not is_in_flight:
        replica.commit()
    replica.scheduler.abort(handle)
    assert replica.scheduler.num_free_blocks == 7
    if is_in_flight:
        assert replica.commit() == []
    replica.run_until_idle()
    assert replica.finished_handles == [handle]
    assert replica.known_handles == frozenset()


def test_abort_before_admission_tells_the_workers_nothing():
    """Workers never hear of a request that was aborted while it waited."""
    replica = ScriptedReplica(ONE_COHORT)
    handle = replica.scheduler.add(request((1,), max_tokens=1))
    replica.scheduler.abort(handle)
    assert replica.plan() is None
    assert not replica.scheduler.has_undelivered_finishes
    assert replica.scheduler.num_waiting == 0


def test_abort_of_an_unknown_handle_is_ignored():
    """Aborting twice, or after the end, changes nothing."""
    replica = ScriptedReplica(ONE_COHORT)
    handle = replica.scheduler.add(request((1,), max_tokens=1))
    replica.run_until_idle()
    replica.scheduler.abort(handle)
    assert replica.finished_handles == [handle]


def test_finished_handle_is_delivered_with_the_next_step():
    """The step after the end of a request tells the workers to forget it."""
    replica = ScriptedReplica(ONE_COHORT)
    short = replica.scheduler.add(request((1,), max_tokens=1))
    replica.scheduler.add(request((2,), max_tokens=3))
    replica.plan()
    replica.commit()
    assert replica.scheduler.has_undelivered_finishes
    output = replica.plan()
    assert output is not None
    assert output.finished_handles.tolist() == [short]
    assert not replica.scheduler.has_undelivered_finishes


def test_failed_request_fails_alone():
    """A request the workers could not run is forgotten; its neighbour gets its tokens."""
    replica = ScriptedReplica(ONE_COHORT, poison_token_id=200)
    bad = replica.scheduler.add(request((200,), max_tokens=4))
    good = replica.scheduler.add(request((1,), max_tokens=2))
    replica.run_until_idle()
    assert replica.token_ids[good] == list(scripted_tokens((1,), 2))
    assert bad not in replica.token_ids
    assert replica.known_handles == frozenset()
    assert replica.scheduler.num_free_blocks == 63


def test_result_without_a_sampled_row_is_an_error():
    """A result that leaves a row out fails the step instead of leaving its request hanging."""
    replica = ScriptedReplica(ONE_COHORT)
    replica.scheduler.add(request((1,), max_tokens=2))
    output = replica.scheduler.schedule()
    assert output is not None
    empty = ModelRunnerOutput(key=StepKey(step_id=output.step_id, phase=Phase.SAMPLE))
    with pytest.raises(StepFailed, match="had to sample 1"):
        replica.scheduler.update_from_output(output, empty)


def test_result_of_another_step_is_an_error():
    """A result with another step's key is not committed."""
    replica = ScriptedReplica(ONE_COHORT)
    replica.scheduler.add(request((1,), max_tokens=2))
    output = replica.scheduler.schedule()
    assert output is not None
    other = replace(output.step_id, step=7)
    result = ModelRunnerOutput(key=StepKey(step_id=other, phase=Phase.SAMPLE))
    with pytest.raises(StepFailed, match="step=7"):
        replica.scheduler.update_from_output(output, result)


def test_each_request_gets_the_logprobs_it_asked_for():
    """A step's log-probabilities are cut to what each request asked for; the others get none."""
    replica = ScriptedReplica(ONE_COHORT)
    plain = replica.scheduler.add(request((1,), max_tokens=1))
    one = replica.scheduler.add(request((2,), max_tokens=1, num_logprobs=1))
    three = replica.scheduler.add(request((3,), max_tokens=1, num_logprobs=3))
    replica.plan()
    deltas = dict(replica.commit())
    assert deltas[plain].logprobs is None
    for handle, count in ((one, 1), (three, 3)):
        (position,) = deltas[handle].logprobs or ()
        assert position.token_id == deltas[handle].token_ids[0]
        assert position.rank == 1
        assert len(position.top) == count


def test_warm_up_touches_only_the_null_block():
    """The warm-up step is step 1, owns no block, and its request ends with the next step."""
    replica = ScriptedReplica(ONE_COHORT)
    replica.send(replica.scheduler.plan_warm_up())
    assert replica.commit() == []
    (warm_up,) = replica.known_handles
    handle = replica.scheduler.add(request((1, 2), max_tokens=3))
    output = replica.plan()
    assert output is not None
    assert output.finished_handles.tolist() == [warm_up]
    replica.commit()
    replica.run_until_idle()
    assert replica.token_ids[handle] == list(scripted_tokens((1, 2), 3))


def test_nothing_is_planned_beyond_the_steps_in_flight():
    """With every step in flight taken, schedule has nothing until one is committed."""
    replica = ScriptedReplica(ScheduleConfig(max_steps_in_flight=2), num_stages=2)
    for token in range(8):
        replica.scheduler.add(request((token,), max_tokens=3))
    assert len(replica.plan_all()) == 2
    assert replica.scheduler.schedule() is None
    replica.commit()
    assert replica.plan() is not None


def test_new_block_ids_are_int32_columns():
    """Every column has the dtype the wire has."""
    replica = ScriptedReplica(ONE_COHORT)
    replica.scheduler.add(request((1, 2, 3, 4), max_tokens=3))
    replica.plan()
    replica.commit()
    output = replica.plan()
    assert output is not None
    cached = output.cached_requests
    assert cached.handles.dtype == cached.token_source_steps.dtype == np.uint64
    assert cached.new_token_ids.values.dtype == cached.new_block_ids[0].values.dtype == np.int32
    assert cached.new_token_ids.offsets.dtype == np.uint32
    assert output.finished_handles.dtype == output.preempted_handles.dtype == np.uint64


def test_end_of_a_generation_frees_everything():
    """Sequences running, waiting and in flight are forgotten, and the next generation starts at 1."""
    replica = ScriptedReplica(ScheduleConfig(max_num_seqs=1, max_steps_in_flight=2), num_stages=2)
    for name in ("a", "b"):
        replica.scheduler.add(request((1, 2, 3), max_tokens=5, request_id=name))
    assert replica.scheduler.schedule() is not None
    replica.scheduler.end_generation()
    assert (replica.scheduler.num_running, replica.scheduler.num_waiting) == (0, 0)
    assert replica.scheduler.num_free_blocks == 63
    replica.scheduler.begin_generation(epoch=1, generation=2)
    handle = replica.scheduler.add(request((1,), max_tokens=1, request_id="c"))
    output = replica.scheduler.schedule()
    assert output is not None
    assert (output.step_id.step, output.base_step, output.step_id.generation) == (1, 0, 2)
    assert [new.handle for new in output.new_requests] == [handle]
    assert not output.finished_handles.size


def test_only_every_nth_step_asks_for_digests():
    """With 3, steps 3, 6 and 9 do; the warm-up step never does, its request is in no book."""
    replica = ScriptedReplica(ScheduleConfig(check_state_every=3, max_steps_in_flight=1))
    replica.scheduler.add(request((1,), max_tokens=9))
    asked: list[int] = []
    while (output := replica.plan()) is not None:
        if output.want_state_digest:
            asked.append(output.step_id.step)
        replica.commit()
    assert asked == [3, 6, 9]
    always = ScriptedReplica(ScheduleConfig(check_state_every=1))
    assert not always.scheduler.plan_warm_up().want_state_digest
