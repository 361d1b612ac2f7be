"""Facts of cohorts: turns, even sizes, and that nothing moves in flight."""

from common.config import ScheduleConfig
from tests.fakes.scripted_replica import ScriptedReplica, handles_of, request


def _replica(num_stages: int) -> ScriptedReplica:
    config = ScheduleConfig(async_scheduling=False)
    return ScriptedReplica(config, num_stages=num_stages, num_blocks=256)


def test_waiting_requests_spread_over_all_cohorts():
    """Eight requests that arrive together fill four steps in flight with two each."""
    replica = _replica(4)
    for token in range(8):
        replica.scheduler.add(request((token,), max_tokens=4))
    outputs = replica.plan_all()
    assert [output.num_rows for output in outputs] == [2, 2, 2, 2]


def test_one_cohort_puts_all_sequences_in_one_step():
    """With pp_cohorts 1 a step takes every sequence, and no second step is planned beside it."""
    config = ScheduleConfig(pp_cohorts=1, async_scheduling=False)
    replica = ScriptedReplica(config, num_stages=4)
    for token in range(8):
        replica.scheduler.add(request((token,), max_tokens=4))
    assert [output.num_rows for output in replica.plan_all()] == [8]


def test_one_step_in_flight_means_one_cohort():
    """With one step in flight there is nothing to overlap, so a step takes every sequence."""
    replica = ScriptedReplica(ScheduleConfig(max_steps_in_flight=1), num_stages=4)
    for token in range(8):
        replica.scheduler.add(request((token,), max_tokens=4))
    assert [output.num_rows for output in replica.plan_all()] == [8]


def test_cohorts_take_turns():
    """Steps alternate between the cohorts, and a sequence stays in its cohort."""
    replica = _replica(2)
    for token in range(4):
        replica.scheduler.add(request((token,), max_tokens=9))
    steps = [handles_of(output) for output in replica.plan_all()]
    for _ in range(4):
        replica.commit()
        steps += [handles_of(output) for output in replica.plan_all()]
    assert steps == [[1, 2], [3, 4]] * 3


def test_a_late_request_joins_the_smaller_cohort():
    """A new request is not admitted to a cohort that would become larger than its share."""
    replica = _replica(2)
    for token in range(3):
        replica.scheduler.add(request((token,), max_tokens=9))
    assert [output.num_rows for output in replica.plan_all()] == [2, 1]
    late = replica.scheduler.add(request((9,), max_tokens=9))
    replica.commit()
    (first,) = replica.plan_all()
    replica.commit()
    (second,) = replica.plan_all()
    assert late not in handles_of(first)
    assert late in handles_of(second)


def test_a_cohort_that_ran_dry_is_filled_again():
    """When one cohort's sequences have ended, half of the other's move over at its next turn."""
    replica = _replica(2)
    for token in range(8):
        replica.scheduler.add(request((token,), max_tokens=2 if token >= 4 else 20))
    replica.plan_all()
    sizes = []
    for _ in range(8):
        replica.commit()
        sizes += [output.num_rows for output in replica.plan_all()]
    assert sizes[-2:] == [2, 2]
    assert set(replica.handles_in_flight) == {1, 2, 3, 4}


def test_rows_stay_in_order_of_arrival_after_a_move():
    """Sequences that moved stand in their new cohort by age, so the youngest still gives way first."""
    replica = _replica(2)
    for token in range(8):
        replica.scheduler.add(request((token,), max_tokens=2 if token in (4, 5, 6) else 20))
    replica.plan_all()
    for _ in range(8):
        replica.commit()
        for output in replica.plan_all():
            assert handles_of(output) == sorted(handles_of(output))
    assert set(replica.handles_in_flight) == {1, 2, 3, 4, 8}


def test_long_and_short_prompts_are_spread_by_their_tokens():
    """Two long and two short prompts make two steps of about the same length, not of the same rows."""
    replica = _replica(2)
    for length in (100, 100, 5, 5):
        replica.scheduler.add(request((1,) * length, max_tokens=4))
    first, second = replica.plan_all()
    assert first.num_scheduled_tokens.tolist() == [100]
    assert second.num_scheduled_tokens.tolist() == [100, 5]


def test_a_full_step_is_not_held_back():
    """Where the waiting prompts fill every cohort's budget, each step takes all it can."""
    config = ScheduleConfig(max_num_batched_tokens=150, async_scheduling=False)
    replica = ScriptedReplica(config, num_stages=2, num_blocks=256)
    for _ in range(8):
        replica.scheduler.add(request((1,) * 100, max_tokens=4))
    assert [output.total_num_scheduled_tokens for output in replica.plan_all()] == [150, 150]


def test_one_idle_cohort_shares_with_nobody():
    """A cohort that is alone in being idle admits whatever fits its fair size."""
    replica = _replica(2)
    for length in (3, 3):
        replica.scheduler.add(request((1,) * length, max_tokens=9))
    replica.plan_all()
    for length in (100, 5):
        replica.scheduler.add(request((2,) * length, max_tokens=9))
    replica.commit()
    (output,) = replica.plan_all()
    assert sorted(output.num_scheduled_tokens.tolist()) == [1, 100]
