"""Log-probabilities of a prompt come in chunks, once each, and outputs of one prompt share them."""

import numpy as np

from common.requests import Request, SamplingParams, StopParams
from common.step import Logprobs, PromptLogprobs
from coordinator.scheduling.sequence import Sequence

PROMPT = (5, 6, 7, 8)


def sequence(*, handle: int = 1, leader: Sequence | None = None) -> Sequence:
    """A sequence that wants those of its prompt, without alternatives."""
    return Sequence(
        handle,
        Request(
            request_id=str(handle),
            prompt_token_ids=PROMPT,
            sampling=SamplingParams(num_prompt_logprobs=0),
            stopping=StopParams(max_tokens=4),
        ),
        max_sequence_len=64,
        leader=leader,
    )


def part(first_position: int, end: int) -> PromptLogprobs:
    """What a step computed of the tokens at these positions; the log-probability tells which."""
    positions = np.arange(first_position, end)
    return PromptLogprobs(
        handle=1,
        first_position=first_position,
        logprobs=Logprobs(
            token_ids=np.array([[PROMPT[position]] for position in positions], np.int32),
            logprobs=-positions[:, None].astype(np.float32),
            ranks=np.ones(len(positions), np.int32),
        ),
    )


def told(asked: Sequence) -> list[tuple[int, float]]:
    """Tokens and values that go with the first token of the output."""
    asked.append(9)
    return [(each.token_id, each.logprob) for each in asked.take_prompt_logprobs() or ()]


ALL = [(6, -1.0), (7, -2.0), (8, -3.0)]


def test_chunks_are_joined():
    """What a preemption had computed again is not told twice."""
    one = sequence()
    one.add_prompt_logprobs(part(1, 3))
    assert not one.reads_prefixes
    one.add_prompt_logprobs(part(1, 3))
    one.add_prompt_logprobs(part(1, 4))
    assert one.reads_prefixes
    assert told(one) == ALL


def test_they_go_with_the_first_token_alone():
    """Later tokens bring none."""
    one = sequence()
    one.add_prompt_logprobs(part(1, 4))
    assert told(one) == ALL
    assert told(one) == []


def test_another_output_waits_for_them_and_takes_them_over():
    """The leader has computed its prompt, but what it is told of it is on its way."""
    leader = sequence()
    follower = sequence(handle=2, leader=leader)
    leader.num_computed_tokens = len(PROMPT)
    assert follower.waits_for_leader
    leader.add_prompt_logprobs(part(1, 4))
    assert not follower.waits_for_leader
    follower.learn_from_leader()
    assert follower.reads_prefixes
    follower.add_prompt_logprobs(part(3, 4))
    assert told(follower) == ALL
