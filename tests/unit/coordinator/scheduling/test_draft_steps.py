"""Facts of steps that check draft tokens."""

import pytest

from common.config import ScheduleConfig
from common.requests import FinishReason
from common.step import SchedulerOutput
from tests.fakes.scripted_model import scripted_drafts, scripted_tokens
from tests.fakes.scripted_replica import ScriptedReplica, request

AHEAD = ScheduleConfig(check_state_every=1)
IN_TURN = ScheduleConfig(check_state_every=1, async_scheduling=False)
MOST_DRAFTS = 3


def _drafts(output: SchedulerOutput) -> list[list[int]]:
    drafts = output.cached_requests.draft_token_ids
    if drafts is None:
        return []
    return [drafts.row(index).tolist() for index in range(drafts.num_rows)]


def _prompt_with_drafts(num_drafts: int) -> tuple[int, ...]:
    """A prompt behind whose first token the scripted model proposes so many drafts."""
    for token in range(200):
        known = (token, *scripted_tokens((token,), 1))
        if len(scripted_drafts(known, MOST_DRAFTS)) == num_drafts:
            return (token,)
    raise AssertionError("no prompt has as many")


def test_drafts_that_are_known_are_sent():
    """Without asynchronous scheduling a row carries its token and the drafts behind it."""
    replica = ScriptedReplica(IN_TURN, most_drafts=MOST_DRAFTS)
    prompt = _prompt_with_drafts(2)
    replica.scheduler.add(request(prompt, max_tokens=9))
    (first,) = replica.plan_all()
    replica.commit()
    (second,) = replica.plan_all()
    assert (first.num_drafts_wanted.tolist(), _drafts(first)) == ([MOST_DRAFTS], [])
    known = (*prompt, *scripted_tokens(prompt, 1))
    assert _drafts(second) == [list(scripted_drafts(known, MOST_DRAFTS))]
    assert second.num_scheduled_tokens.tolist() == [3]


def test_a_step_ahead_makes_room_for_drafts_it_does_not_know():
    """Behind a step in flight a row is planned with all it may have, and counts as if all were right."""
    replica = ScriptedReplica(AHEAD, most_drafts=MOST_DRAFTS)
    replica.scheduler.add(request((1, 2), max_tokens=30))
    _, second = replica.plan_all()
    assert second.num_scheduled_tokens.tolist() == [1 + MOST_DRAFTS]
    assert second.cached_requests.token_source_steps.tolist() == [1]
    assert _drafts(second) == []
    replica.commit()
    (third,) = replica.plan_all()
    assert third.cached_requests.num_computed_tokens.tolist() == [2 + 1 + MOST_DRAFTS]


@pytest.mark.parametrize("config", [AHEAD, IN_TURN])
def test_an_end_among_accepted_drafts_drops_the_rest(config):
    """Whichever token is the last one, nothing behind it is in the output or in the counts."""
    for length in range(1, 12):
        token_ids = scripted_tokens((5,), 12)
        stop = token_ids[length - 1]
        expected = list(token_ids[: token_ids.index(stop) + 1])
        replica = ScriptedReplica(config, most_drafts=MOST_DRAFTS)
        handle = replica.scheduler.add(
            request((5,), max_tokens=40, stop_token_ids=frozenset({stop}))
        )
        replica.run_until_idle()
        assert replica.token_ids[handle] == expected
        assert replica.finish_reasons[handle] is FinishReason.STOP
        assert replica.scheduler.counters.num_generated_tokens == len(expected)
        assert replica.scheduler.num_free_blocks == 63


@pytest.mark.parametrize("config", [AHEAD, IN_TURN])
def test_no_row_reaches_past_the_longest_output(config):
    """Drafts are planned up to the last token but one, which the target's own follows."""
    for max_tokens in range(1, 9):
        replica = ScriptedReplica(config, most_drafts=MOST_DRAFTS)
        handle = replica.scheduler.add(request((5, 6), max_tokens=max_tokens))
        replica.run_until_idle()
        assert replica.token_ids[handle] == list(scripted_tokens((5, 6), max_tokens))


def test_drafts_take_no_block_that_others_need():
    """Nobody gives way to guesses: with blocks for the tokens alone nothing is preempted."""
    replica = ScriptedReplica(IN_TURN, num_blocks=5, block_size=4, most_drafts=MOST_DRAFTS)
    handles = [replica.scheduler.add(request((token,), max_tokens=7)) for token in (1, 2)]
    replica.run_until_idle()
    assert replica.scheduler.counters.num_preemptions == 0
    for handle, token in zip(handles, (1, 2), strict=True):
        assert replica.token_ids[handle] == list(scripted_tokens((token,), 7))


def test_every_row_gets_its_token_before_drafts_do():
    """The budget of a step goes to tokens first."""
    config = ScheduleConfig(max_num_batched_tokens=5, async_scheduling=False)
    replica = ScriptedReplica(config, most_drafts=MOST_DRAFTS)
    for token in range(4):
        replica.scheduler.add(request((token,), max_tokens=12))
    replica.plan_all()
    replica.commit()
    (second,) = replica.plan_all()
    assert second.num_rows == 4
    assert second.total_num_scheduled_tokens == 5
