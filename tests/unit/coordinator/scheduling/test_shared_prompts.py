"""Several outputs of one prompt: it is computed once, and its full blocks are held once."""

import pytest

from common.config import ScheduleConfig
from tests.fakes.scripted_model import scripted_tokens
from tests.fakes.scripted_replica import ScriptedReplica, request

PROMPT = tuple(range(100, 142))
BLOCK_SIZE = 4
NUM_FULL_BLOCKS = 10


def add_outputs(replica: ScriptedReplica, count: int, *, max_tokens: int = 6) -> list[int]:
    """So many requests with one prompt, all led by the first."""
    asked = request(PROMPT, max_tokens=max_tokens)
    leader = replica.scheduler.add(asked)
    return [leader, *(replica.scheduler.add(asked, leader=leader) for _ in range(count - 1))]


@pytest.mark.parametrize("has_prefix_cache", [True, False])
@pytest.mark.parametrize("max_num_batched_tokens", [16, 512])
def test_prompt_is_computed_once(max_num_batched_tokens: int, *, has_prefix_cache: bool) -> None:
    """Followers compute what stands behind the full blocks alone, chunked or not, cached or not."""
    config = ScheduleConfig(max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=8)
    replica = ScriptedReplica(
        config, num_blocks=64, block_size=BLOCK_SIZE, has_prefix_cache=has_prefix_cache
    )
    handles = add_outputs(replica, 4)
    num_computed = 0
    while (output := replica.plan()) is not None:
        num_computed += output.total_num_scheduled_tokens
        replica.commit()
    rest = len(PROMPT) - NUM_FULL_BLOCKS * BLOCK_SIZE
    num_decoded = 4 * (6 - 1)
    assert num_computed == len(PROMPT) + 3 * rest + num_decoded
    for handle in handles:
        assert replica.token_ids[handle] == list(scripted_tokens(PROMPT, 6))
    assert replica.scheduler.num_free_blocks == 63


def test_blocks_are_held_once() -> None:
    """While all of them decode, the prompt's full blocks count once."""
    config = ScheduleConfig(max_num_batched_tokens=512, max_num_seqs=8)
    replica = ScriptedReplica(config, num_blocks=64, block_size=BLOCK_SIZE, has_prefix_cache=False)
    add_outputs(replica, 4)
    for _ in range(3):
        replica.plan()
        replica.commit()
    assert replica.scheduler.num_running == 4
    assert 63 - replica.scheduler.num_free_blocks == NUM_FULL_BLOCKS + 4


def test_followers_go_on_without_their_leader() -> None:
    """A leader that is aborted before its prompt is computed leaves that to the next one."""
    config = ScheduleConfig(max_num_batched_tokens=16, max_num_seqs=8)
    replica = ScriptedReplica(config, num_blocks=64, block_size=BLOCK_SIZE)
    leader, second, third = add_outputs(replica, 3)
    replica.plan()
    replica.scheduler.abort(leader)
    replica.commit()
    replica.run_until_idle()
    for handle in (second, third):
        assert replica.token_ids[handle] == list(scripted_tokens(PROMPT, 6))
    assert replica.scheduler.num_free_blocks == 63
