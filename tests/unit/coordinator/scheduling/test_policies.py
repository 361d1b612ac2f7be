"""Facts of who is admitted, who gives way, and how much of a prompt a step takes."""

from dataclasses import replace

import pytest

from common.config import ScheduleConfig
from tests.fakes.scripted_model import scripted_tokens
from tests.fakes.scripted_replica import ScriptedReplica, handles_of, request

ONE_COHORT = ScheduleConfig(pp_cohorts=1, max_steps_in_flight=1, check_state_every=1)
PRIORITY = replace(ONE_COHORT, scheduling_policy="priority")


def _step(replica: ScriptedReplica) -> dict[int, int]:
    """Plan and answer one step; its tokens by handle."""
    output = replica.plan()
    assert output is not None
    replica.commit()
    return dict(zip(handles_of(output), output.num_scheduled_tokens.tolist(), strict=True))


def test_urgent_requests_are_admitted_first():
    """With priorities the smallest one gets the next free seat, whoever came first."""
    replica = ScriptedReplica(replace(PRIORITY, max_num_seqs=1))
    late = replica.scheduler.add(request((1,), max_tokens=1, priority=3))
    soon = replica.scheduler.add(request((2,), max_tokens=1, priority=-3))
    assert [list(_step(replica)) for _ in range(2)] == [[soon], [late]]


def test_without_the_policy_a_priority_is_ignored():
    """First come, first served treats all alike."""
    replica = ScriptedReplica(replace(ONE_COHORT, max_num_seqs=1))
    first = replica.scheduler.add(request((1,), max_tokens=1, priority=3))
    second = replica.scheduler.add(request((2,), max_tokens=1, priority=-3))
    assert [list(_step(replica)) for _ in range(2)] == [[first], [second]]


def test_urgent_request_takes_no_running_ones_seat():
    """A running sequence keeps its seat; only blocks that run out make it give way."""
    replica = ScriptedReplica(replace(PRIORITY, max_num_seqs=1))
    running = replica.scheduler.add(request((1,), max_tokens=3, priority=3))
    _step(replica)
    soon = replica.scheduler.add(request((2,), max_tokens=1, priority=-3))
    assert [list(_step(replica)) for _ in range(3)] == [[running], [running], [soon]]
    assert replica.scheduler.counters.num_preemptions == 0


@pytest.mark.parametrize("old_is_urgent", [True, False])
def test_the_least_urgent_gives_way(*, old_is_urgent: bool):
    """When blocks run out the largest priority gives way, be it the oldest; both end with their tokens."""
    replica = ScriptedReplica(PRIORITY, num_blocks=6, block_size=4)
    old = replica.scheduler.add(
        request((1, 2, 3, 4), max_tokens=10, priority=0 if old_is_urgent else 9)
    )
    young = replica.scheduler.add(request((5, 6, 7, 8), max_tokens=10, priority=5))
    finished: list[int] = []
    while replica.plan() is not None:
        replica.commit()
        finished += [handle for handle in replica.finish_reasons if handle not in finished]
    assert finished == ([old, young] if old_is_urgent else [young, old])
    assert replica.scheduler.counters.num_preemptions > 0
    assert replica.token_ids[old] == list(scripted_tokens((1, 2, 3, 4), 10))
    assert replica.token_ids[young] == list(scripted_tokens((5, 6, 7, 8), 10))


def test_running_rows_stand_in_order_of_priority():
    """An urgent sequence gets its tokens of the budget before those that ran already."""
    config = replace(PRIORITY, max_num_batched_tokens=4)
    replica = ScriptedReplica(config)
    slow = replica.scheduler.add(request(tuple(range(11)), max_tokens=1, priority=1))
    _step(replica)
    urgent = replica.scheduler.add(request((9,), max_tokens=3, priority=0))
    assert _step(replica) == {slow: 4}
    assert _step(replica) == {slow: 3, urgent: 1}
    slow_again = replica.scheduler.add(request(tuple(range(50, 70)), max_tokens=1, priority=2))
    assert _step(replica) == {urgent: 1, slow_again: 3}


def test_long_prompt_is_cut_while_others_need_the_step():
    """With a cap a long prompt leaves room for the next prompt; alone it takes the whole step."""
    config = replace(ONE_COHORT, max_num_batched_tokens=8, max_prefill_chunk=4)
    replica = ScriptedReplica(config)
    long = replica.scheduler.add(request(tuple(range(30)), max_tokens=1))
    assert _step(replica) == {long: 8}
    short = replica.scheduler.add(request((1, 2, 3), max_tokens=2))
    assert _step(replica) == {long: 4, short: 3}
    assert _step(replica) == {long: 4, short: 1}
    assert _step(replica) == {long: 8}
    assert _step(replica) == {long: 6}
    assert replica.token_ids[long] == list(scripted_tokens(range(30), 1))


def test_watermark_holds_admission_back_while_others_run():
    """With half of the blocks as watermark a second prompt waits; alone one may take nearly all."""
    config = replace(ONE_COHORT, admission_watermark=0.5)
    replica = ScriptedReplica(config, num_blocks=21, block_size=4)
    first = replica.scheduler.add(request(tuple(range(60)), max_tokens=2))
    second = replica.scheduler.add(request(tuple(range(100, 108)), max_tokens=2))
    assert list(_step(replica)) == [first]
    assert list(_step(replica)) == [first]
    assert list(_step(replica)) == [second]


def test_without_a_watermark_the_same_prompts_run_together():
    """What held the second prompt back was the watermark alone."""
    replica = ScriptedReplica(
        replace(ONE_COHORT, admission_watermark=0.0), num_blocks=21, block_size=4
    )
    first = replica.scheduler.add(request(tuple(range(60)), max_tokens=2))
    second = replica.scheduler.add(request(tuple(range(100, 108)), max_tokens=2))
    assert list(_step(replica)) == [first, second]
