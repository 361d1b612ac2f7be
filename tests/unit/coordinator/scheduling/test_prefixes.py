"""Facts of prefix caching in the scheduler, on hand-built requests and a scripted model."""

from dataclasses import replace

import pytest

from common.config import ScheduleConfig
from tests.fakes.scripted_model import scripted_tokens
from tests.fakes.scripted_replica import ScriptedReplica, handles_of, request

ONE_COHORT = ScheduleConfig(pp_cohorts=1, max_steps_in_flight=1, check_state_every=1)
STEM = tuple(range(10, 30))


def _run_alone(replica: ScriptedReplica, prompt: tuple[int, ...], *, max_tokens: int = 3) -> int:
    """Run one request to its end and return its handle."""
    handle = replica.scheduler.add(request(prompt, max_tokens=max_tokens))
    replica.run_until_idle()
    return handle


@pytest.mark.parametrize(("has_prefix_cache", "num_computed"), [(True, 2), (False, 22)])
def test_shared_prompt_is_computed_once(*, has_prefix_cache: bool, num_computed: int):
    """After one request its prompt's full blocks are not computed again; the tokens stay the same."""
    replica = ScriptedReplica(ONE_COHORT, has_prefix_cache=has_prefix_cache)
    _run_alone(replica, STEM, max_tokens=1)
    before = replica.num_computed_tokens
    handle = _run_alone(replica, (*STEM, 1, 2), max_tokens=1)
    assert replica.num_computed_tokens - before == num_computed
    assert replica.token_ids[handle] == list(scripted_tokens((*STEM, 1, 2), 1))


def test_equal_prompt_computes_at_least_its_last_token():
    """A prompt that is cached whole still computes its last block: a row has at least one token."""
    replica = ScriptedReplica(ONE_COHORT, block_size=4)
    _run_alone(replica, STEM)
    handle = replica.scheduler.add(request(STEM, max_tokens=3))
    output = replica.plan()
    assert output is not None
    assert output.new_requests[0].num_computed_tokens == 16
    assert output.num_scheduled_tokens.tolist() == [4]
    replica.commit()
    replica.run_until_idle()
    assert replica.token_ids[handle] == list(scripted_tokens(STEM, 3))


def test_generated_tokens_are_shared_too():
    """The next turn of a conversation finds the answer of the turn before."""
    replica = ScriptedReplica(ONE_COHORT, block_size=4)
    _run_alone(replica, STEM, max_tokens=9)
    answer = scripted_tokens(STEM, 9)
    replica.scheduler.add(request((*STEM, *answer, 7), max_tokens=1))
    output = replica.plan()
    assert output is not None
    assert output.new_requests[0].num_computed_tokens == 28


def test_running_requests_share_with_later_ones():
    """Blocks are found while the request that filled them runs, and belong to both."""
    replica = ScriptedReplica(ONE_COHORT, block_size=4, num_blocks=16)
    first = replica.scheduler.add(request(STEM, max_tokens=8))
    replica.plan()
    replica.commit()
    second = replica.scheduler.add(request(STEM, max_tokens=8))
    replica.plan()
    replica.commit()
    # Six blocks of the first, and one that is the second's alone.
    assert replica.scheduler.num_free_blocks == 15 - 7
    replica.run_until_idle()
    assert replica.token_ids[first] == replica.token_ids[second]
    assert replica.scheduler.num_free_blocks == 15


def test_nothing_is_found_before_its_step_is_committed():
    """What a step in flight fills is not shared: its result may never come."""
    config = ScheduleConfig(check_state_every=1, async_scheduling=False)
    replica = ScriptedReplica(config, num_stages=2)
    for _ in range(2):
        replica.scheduler.add(request(STEM, max_tokens=2))
    first, second = replica.plan_all()
    assert handles_of(first) != handles_of(second)
    assert [new.num_computed_tokens for new in second.new_requests] == [0]


def test_aborted_request_leaves_what_was_committed():
    """Chunks committed before an abort are found; the chunk in flight is not."""
    replica = ScriptedReplica(replace(ONE_COHORT, max_num_batched_tokens=8), block_size=4)
    handle = replica.scheduler.add(request(STEM, max_tokens=2))
    replica.plan()
    replica.commit()
    replica.plan()
    replica.scheduler.abort(handle)
    replica.commit()
    replica.scheduler.add(request(STEM, max_tokens=2))
    output = replica.plan()
    assert output is not None
    assert output.new_requests[0].num_computed_tokens == 8


def test_eviction_gives_the_longest_unused_prefix_away():
    """Under pressure the prefix used last survives, and what was evicted is computed anew."""
    replica = ScriptedReplica(ONE_COHORT, num_blocks=9, block_size=4)
    old, recent = tuple(range(8)), tuple(range(100, 108))
    _run_alone(replica, (*old, 1))
    _run_alone(replica, (*recent, 1))
    _run_alone(replica, tuple(range(50, 66)), max_tokens=8)
    for prompt, num_computed in (((*recent, 2), 8), ((*old, 2), 0)):
        handle = replica.scheduler.add(request(prompt, max_tokens=3))
        output = replica.plan()
        assert output is not None
        assert output.new_requests[0].num_computed_tokens == num_computed
        replica.commit()
        replica.run_until_idle()
        assert replica.token_ids[handle] == list(scripted_tokens(prompt, 3))


def test_a_generation_begins_with_an_empty_cache():
    """New workers may hold other keys and values in the same blocks, so nothing is found."""
    replica = ScriptedReplica(ONE_COHORT)
    _run_alone(replica, STEM)
    scheduler = replica.scheduler
    scheduler.end_generation()
    scheduler.begin_generation(epoch=1, generation=2)
    scheduler.add(request(STEM, max_tokens=1))
    output = scheduler.schedule()
    assert output is not None
    assert output.new_requests[0].num_computed_tokens == 0


def test_failed_request_leaves_nothing():
    """Blocks of a request that failed in its first step are not found."""
    replica = ScriptedReplica(ONE_COHORT, poison_token_id=200)
    replica.scheduler.add(request((*STEM, 200), max_tokens=4))
    replica.run_until_idle()
    replica.scheduler.add(request(STEM, max_tokens=1))
    output = replica.plan()
    assert output is not None
    assert output.new_requests[0].num_computed_tokens == 0


def test_prompt_tokens_and_hits_are_counted():
    """20 tokens and none of them found, then 22 and 20 found; each delta says how many."""
    replica = ScriptedReplica(ONE_COHORT)
    _run_alone(replica, STEM)
    replica.scheduler.add(request((*STEM, 1, 2), max_tokens=3))
    replica.plan()
    ((_, delta),) = replica.commit()
    assert delta.num_cached_tokens == 20
    counters = replica.scheduler.counters
    assert (counters.num_prompt_tokens, counters.num_cached_tokens) == (42, 20)
    assert counters.num_generated_tokens == 4


def test_preempted_request_is_counted_once():
    """What a readmission after a preemption finds does not count as found in a prompt."""
    replica = ScriptedReplica(ONE_COHORT, num_blocks=6, block_size=4)
    replica.scheduler.add(request((1, 2, 3, 4), max_tokens=12))
    replica.scheduler.add(request((5, 6, 7), max_tokens=8))
    replica.run_until_idle()
    counters = replica.scheduler.counters
    assert counters.num_preemptions == 1
    assert (counters.num_prompt_tokens, counters.num_cached_tokens) == (7, 0)
