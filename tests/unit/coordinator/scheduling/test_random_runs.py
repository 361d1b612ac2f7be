"""Random runs of the scheduler: whatever comes, every request gets its tokens and all blocks return."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from common.config import ScheduleConfig
from common.errors import Overloaded
from common.requests import FinishReason, Request
from tests.fakes.scripted_model import scripted_tokens
from tests.fakes.scripted_replica import ScriptedReplica, request

VOCAB_SIZE = 24
EOS = frozenset({3})
BLOCK_SIZE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request and when it comes and leaves, counted in turns; abort_after None: it stays.

    copies: as many with the same prompt follow at once, which share its blocks.
    """

    turn: int
    prompt: tuple[int, ...]
    max_tokens: int
    ignore_eos: bool
    abort_after: int | None
    priority: int = 0
    copies: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The sizes of a run; each block table has blocks_of_table of the blocks."""

    num_stages: int
    config: ScheduleConfig
    blocks_of_table: int
    table_windows: tuple[int, ...] = (0,)
    has_prefix_cache: bool = True
    most_drafts: int = 0

    @property
    def num_blocks(self) -> int:
        """All blocks, the null block included."""
        return self.blocks_of_table * len(self.table_windows)


PROMPT_STEM = tuple(range(4, 16))
"""Half of the prompts begin with a part of it, so that prefixes are shared."""

prompts = st.one_of(
    st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=8).map(tuple),
    st.builds(
        lambda length, end: (*PROMPT_STEM[:length], *end),
        st.integers(3, 7),
        st.lists(st.integers(0, 3), max_size=2).map(tuple),
    ),
)
arrivals = st.builds(
    Arrival,
    turn=st.integers(0, 6),
    prompt=prompts,
    max_tokens=st.integers(1, 20),
    ignore_eos=st.booleans(),
    abort_after=st.none() | st.none() | st.integers(0, 12),
    priority=st.integers(-1, 1),
    copies=st.sampled_from([0, 0, 0, 1, 3]),
)
run_settings = st.builds(
    Settings,
    num_stages=st.integers(1, 4),
    config=st.builds(
        ScheduleConfig,
        async_scheduling=st.booleans(),
        max_num_seqs=st.integers(2, 8),
        max_num_batched_tokens=st.integers(2, 16),
        max_steps_in_flight=st.none() | st.integers(1, 5),
        pp_cohorts=st.none() | st.integers(1, 4),
        max_waiting=st.integers(4, 20),
        check_state_every=st.integers(1, 3),
        scheduling_policy=st.sampled_from(["fcfs", "priority"]),
        max_prefill_chunk=st.none() | st.integers(1, 5),
        admission_watermark=st.sampled_from([0.0, 0.3]),
    ),
    blocks_of_table=st.integers(6, 16),
    table_windows=st.sampled_from([(0,), (0,), (0, 4), (3,), (0, 3, 5)]),
    has_prefix_cache=st.booleans(),
    most_drafts=st.sampled_from([0, 0, 1, 3, 5]),
)


class Run:
    """Feeds arrivals to a replica turn by turn: plan, then answer the steps the test drew."""

    def __init__(self, sizes: Settings, requests: list[Arrival]) -> None:
        self.replica = ScriptedReplica(
            sizes.config,
            num_stages=sizes.num_stages,
            num_blocks=sizes.num_blocks,
            block_size=BLOCK_SIZE,
            eos_token_ids=EOS,
            vocab_size=VOCAB_SIZE,
            has_prefix_cache=sizes.has_prefix_cache,
            most_drafts=sizes.most_drafts,
            table_windows=sizes.table_windows,
        )
        self._requests = requests
        self.accepted: dict[int, Arrival] = {}
        self.aborted: set[int] = set()

    def play(self, num_commits: list[int]) -> None:
        """Let everything arrive, then run until nothing is left."""
        for turn in range(26):
            self._arrive(turn)
            self._abort(turn)
            self.replica.plan_all()
            for _ in range(num_commits[turn % len(num_commits)]):
                if self.replica.has_steps_in_flight:
                    self.replica.commit()
        self.replica.run_until_idle()

    def _arrive(self, turn: int) -> None:
        for arrival in self._requests:
            if arrival.turn == turn:
                asked = request(
                    arrival.prompt,
                    max_tokens=arrival.max_tokens,
                    ignore_eos=arrival.ignore_eos,
                    priority=arrival.priority,
                )
                self._add(asked, arrival)

    def _add(self, asked: Request, arrival: Arrival) -> None:
        leader = None
        try:
            for _ in range(1 + arrival.copies):
                handle = self.replica.scheduler.add(asked, leader=leader)
                self.accepted[handle] = arrival
                leader = leader or handle
        except Overloaded:
            assert self.replica.scheduler.num_waiting >= 4

    def _abort(self, turn: int) -> None:
        for handle, arrival in self.accepted.items():
            is_over = handle in self.replica.finish_reasons
            if arrival.abort_after == turn - arrival.turn and not is_over:
                self.replica.scheduler.abort(handle)
                self.aborted.add(handle)


def _expected(arrival: Arrival, *, longest: int) -> list[int]:
    count = min(arrival.max_tokens, longest - len(arrival.prompt))
    token_ids = list(scripted_tokens(arrival.prompt, count, vocab_size=VOCAB_SIZE))
    ends = [] if arrival.ignore_eos else [i for i, token in enumerate(token_ids) if token in EOS]
    return token_ids[: ends[0] + 1] if ends else token_ids


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    sizes=run_settings,
    requests=st.lists(arrivals, min_size=3, max_size=10),
    num_commits=st.lists(st.integers(0, 3), min_size=1, max_size=8),
)
def test_every_run_ends_with_the_scripted_tokens_and_all_blocks(
    sizes: Settings, requests: list[Arrival], num_commits: list[int]
):
    """Requests end with their own tokens whatever is chunked, preempted, aborted or in flight.

    The replica checks each step: budgets, steps in flight, blocks written by one request alone,
    tokens fed from the step that sampled them, no handle dropped that the workers do not hold, equal
    books.
    """
    run = Run(sizes, requests)
    run.play(num_commits)
    replica, scheduler = run.replica, run.replica.scheduler
    for handle, arrival in run.accepted.items():
        expected = _expected(arrival, longest=scheduler.max_sequence_len)
        got = replica.token_ids[handle]
        if handle in run.aborted:
            assert got == expected[: len(got)]
            assert handle not in replica.finish_reasons
        else:
            assert got == expected
            is_stopped = got[-1] in EOS and not arrival.ignore_eos
            assert replica.finish_reasons[handle] is (
                FinishReason.STOP if is_stopped else FinishReason.LENGTH
            )
    assert scheduler.num_free_blocks == sizes.num_blocks - 1
    assert (scheduler.num_running, scheduler.num_waiting) == (0, 0)
    assert replica.known_handles == frozenset()
    assert len(replica.finished_handles) == len(set(replica.finished_handles))
    assert replica.num_preempted_handles == scheduler.counters.num_preemptions
    assert not scheduler.has_undelivered_finishes


def test_random_runs_do_accept_and_reject():
    """With drafts as the scripted model makes them some are right and some are wrong."""
    requests = [
        Arrival(turn=0, prompt=(i,) * 6, max_tokens=20, ignore_eos=True, abort_after=None)
        for i in range(4)
    ]
    config = ScheduleConfig(max_num_seqs=8, max_num_batched_tokens=16)
    run = Run(Settings(num_stages=2, config=config, blocks_of_table=60, most_drafts=3), requests)
    run.play([1])
    counters = run.replica.scheduler.counters
    assert 0 < counters.num_accepted_tokens < counters.num_draft_tokens
    assert sum(counters.num_accepted_by_position) == counters.num_accepted_tokens


def test_random_runs_do_preempt():
    """The sizes drawn above are small enough that preemption happens at all."""
    requests = [
        Arrival(turn=0, prompt=(i,) * 6, max_tokens=10, ignore_eos=True, abort_after=None)
        for i in range(4)
    ]
    config = ScheduleConfig(max_num_seqs=8, max_num_batched_tokens=16)
    run = Run(Settings(num_stages=2, config=config, blocks_of_table=14), requests)
    run.play([1])
    assert run.replica.scheduler.counters.num_preemptions > 0
    assert run.replica.num_preempted_handles == run.replica.scheduler.counters.num_preemptions


def test_random_runs_do_share_and_evict():
    """With prompts as drawn above prefixes are found, also once preempted sequences took blocks."""
    requests = [
        Arrival(turn=turn, prompt=PROMPT_STEM[:8], max_tokens=12, ignore_eos=True, abort_after=None)
        for turn in (0, 5, 6, 6)
    ]
    config = ScheduleConfig(max_num_seqs=8, max_num_batched_tokens=16)
    run = Run(Settings(num_stages=2, config=config, blocks_of_table=14), requests)
    run.play([1])
    counters = run.replica.scheduler.counters
    assert counters.num_cached_tokens > 0
    assert counters.num_preemptions > 0


def test_random_runs_do_share_and_evict_windows():
    """The same where some layers have windows: blocks are given back early, and found again."""
    requests = [
        Arrival(turn=turn, prompt=PROMPT_STEM[:8], max_tokens=12, ignore_eos=True, abort_after=None)
        for turn in (0, 5, 6, 6)
    ]
    config = ScheduleConfig(max_num_seqs=8, max_num_batched_tokens=2)
    sizes = Settings(num_stages=2, config=config, blocks_of_table=12, table_windows=(0, 3))
    run = Run(sizes, requests)
    run.play([1])
    counters = run.replica.scheduler.counters
    assert counters.num_cached_tokens > 0
    assert counters.num_preemptions > 0
    assert run.replica.scheduler.num_free_blocks == sizes.num_blocks - 1
